"""An artefact exists when its receipt does: faults leave nothing, strangers are named, one maker at a time."""

import errno
import json
import threading
from pathlib import Path

import pytest

from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import ExitCode, Failure

STEP = Step(StepKind.CHECKPOINT, "checkpoint of a test", {"size": 3}, ("0" * 64,), {"tensorrt_llm": "1.2.1"})


def fill(staging: Path) -> tuple[str, ...]:
    (staging / "config.json").write_text("{}")
    (staging / "draft").mkdir()
    (staging / "draft" / "rank0.safetensors").write_bytes(b"weights")
    return ("a note",)


def store_at(root: Path) -> Store:
    return Store(StoreRoots(root), {"draftyard": "1"}, ("draftyard", "build"))


def silent(words: str) -> None:
    raise AssertionError(f"nobody should wait: {words}")


def everything(root: Path) -> list[str]:
    paths = (path for path in root.rglob("*") if ".locks" not in path.parts)
    return sorted(path.relative_to(root).as_posix() for path in paths if path.is_file() or "staging" in path.name)


def test_made_once_with_a_receipt_that_tells_all(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.receipt(STEP) is None
    first = store.ensure(STEP, fill, silent)
    again = store_at(tmp_path).ensure(STEP, lambda staging: pytest.fail("made twice"), silent)
    assert (first.made, again.made) == (True, False)
    assert again.receipt == first.receipt
    assert [record.path for record in first.receipt.files] == ["config.json", "draft/rank0.safetensors"]
    assert first.receipt.call == ("draftyard", "build")
    assert first.receipt.notes == ("a note",)
    assert store.check(STEP) == []


def test_kinds_have_their_own_roots(tmp_path: Path) -> None:
    roots = StoreRoots(tmp_path)
    assert roots.folder(StepKind.ENGINE) == tmp_path / "engines/out/engine"
    assert roots.folder(StepKind.REPOSITORY) == tmp_path / "triton_repo/out"


def failing(error: BaseException) -> object:
    def raise_it(staging: Path) -> tuple[str, ...]:
        fill(staging)
        raise error

    return raise_it


@pytest.mark.parametrize("error", [Failure("no", "yes"), KeyboardInterrupt(), ValueError("a bug")])
def test_a_failing_maker_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        store_at(tmp_path).ensure(STEP, failing(error), silent)
    assert everything(tmp_path) == []


def test_a_full_disk_is_the_environment_and_leaves_nothing(tmp_path: Path) -> None:
    def fill_up(staging: Path) -> tuple[str, ...]:
        fill(staging)
        with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
            full.write(b"x")
        return ()

    with pytest.raises(Failure, match="No space left on device") as caught:
        store_at(tmp_path).ensure(STEP, fill_up, silent)
    assert (caught.value.code, caught.value.hint) == (ExitCode.ENVIRONMENT, "free disk space")
    assert everything(tmp_path) == []


def test_a_full_disk_at_the_receipt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, text: str, encoding: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def fill_bytes(staging: Path) -> tuple[str, ...]:
        (staging / "rank0.safetensors").write_bytes(b"weights")
        monkeypatch.setattr(Path, "write_text", refuse)
        return ()

    with pytest.raises(Failure, match="No space left"):
        store_at(tmp_path).ensure(STEP, fill_bytes, silent)
    assert everything(tmp_path) == []


def test_what_lies_in_the_place_of_an_artefact_is_named(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    place = store.path(STEP.kind, STEP.key)
    place.parent.mkdir(parents=True)
    place.write_text("a stranger")
    with pytest.raises(Failure, match="is a file where checkpoint of a test should be"):
        store.receipt(STEP)
    with pytest.raises(Failure, match="is a file where"):
        store.ensure(STEP, fill, silent)
    assert place.read_text() == "a stranger"


def test_files_without_a_receipt_are_not_ours(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.path(STEP.kind, STEP.key).mkdir(parents=True)
    with pytest.raises(Failure, match="has no receipt"):
        store.receipt(STEP)


def test_missing_and_cut_files_are_named(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.ensure(STEP, fill, silent)
    weights = store.path(STEP.kind, STEP.key) / "draft" / "rank0.safetensors"
    weights.write_bytes(b"weight")
    with pytest.raises(Failure, match=r"draft/rank0.safetensors has 6 bytes, its receipt says 7"):
        store.receipt(STEP)
    weights.unlink()
    with pytest.raises(Failure, match=r"draft/rank0.safetensors is missing"):
        store.receipt(STEP)


def test_check_reads_the_bytes_and_finds_strangers(tmp_path: Path) -> None:
    store_at(tmp_path).ensure(STEP, fill, silent)
    store = store_at(tmp_path)
    place = store.path(STEP.kind, STEP.key)
    (place / "draft" / "rank0.safetensors").write_bytes(b"WEIGHTS")
    (place / "more").write_text("")
    assert store.receipt(STEP) is not None
    assert [problem.message for problem in store.check(STEP)] == [
        "checkpoint of a test: draft/rank0.safetensors changed since it was built",
        "checkpoint of a test: more does not belong there",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store_format": 3}, "written by a newer version"),
        ({"store_format": 3, "new_key": 1}, "written by a newer version"),
        ({"files": 1}, "is broken: files"),
        ({"key": "f" * 64}, "holds the artefact ffffffffffff"),
    ],
)
def test_receipts_that_are_not_ours(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    store = store_at(tmp_path)
    store.ensure(STEP, fill, silent)
    receipt = store.path(STEP.kind, STEP.key) / "receipt.json"
    receipt.write_text(json.dumps({**json.loads(receipt.read_text()), **changes}))
    with pytest.raises(Failure, match=message):
        store.receipt(STEP)
    receipt.write_text("{")
    with pytest.raises(Failure, match="cannot be read"):
        store.receipt(STEP)


def test_the_second_maker_waits_and_takes_what_the_first_made(tmp_path: Path) -> None:
    inside, go, told = threading.Event(), threading.Event(), list[str]()

    def slow(staging: Path) -> tuple[str, ...]:
        inside.set()
        assert go.wait(20)
        return fill(staging)

    def tell(words: str) -> None:
        told.append(words)
        go.set()

    first = threading.Thread(target=lambda: store_at(tmp_path).ensure(STEP, slow, silent))
    first.start()
    assert inside.wait(20)
    second = store_at(tmp_path).ensure(STEP, slow, tell)
    first.join(20)
    assert not second.made
    assert "waiting for process" in told[0]
    assert len(set(told)) == 1


def test_leftovers_of_the_dead_go_and_work_of_the_living_stays(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    folder = StoreRoots(tmp_path).folder(STEP.kind)
    dead = folder / f".staging-{'a' * 64}-999999"
    dead.mkdir(parents=True)
    (dead / "rank0.safetensors").write_bytes(b"half")

    def sweep_meanwhile(staging: Path) -> tuple[str, ...]:
        store.sweep()
        return fill(staging)

    assert store.ensure(STEP, sweep_meanwhile, silent).made
    assert not dead.exists()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".staging")] == []
