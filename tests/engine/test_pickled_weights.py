"""Tensors of a pickle are found without running anything; everything else that such a file may hold is refused."""

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftyard.engine.pickled_weights import pickle_headers
from draftyard.nouns.errors import Failure
from draftyard.nouns.tensor import TensorType


class Command:
    """What a hostile file does when it is loaded as pickles usually are."""

    def __init__(self, line: str) -> None:
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, (self.line,))


def test_headers_lead_to_the_bytes(tmp_path: Path) -> None:
    base = torch.arange(100, dtype=torch.float32)
    state = OrderedDict(
        matrix=torch.randn(3, 4),
        narrow=torch.randn(5).bfloat16(),
        slice=base[10:20].view(2, 5),
        parameter=torch.nn.Parameter(torch.ones(2)),
        mask=torch.tensor([True, False]),
        map=torch.arange(3),
    )
    torch.save(state, tmp_path / "pytorch_model.bin")
    headers = pickle_headers(tmp_path / "pytorch_model.bin")
    raw = (tmp_path / "pytorch_model.bin").read_bytes()
    assert headers["narrow"].type is TensorType.BF16
    assert headers["slice"].shape == (2, 5)
    for name, value in state.items():
        header = headers[name]
        held = raw[header.offset_bytes : header.offset_bytes + header.size_bytes]
        assert held == value.detach().contiguous().view(torch.uint8).numpy().tobytes(), name


def test_a_hostile_file_runs_nothing(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    torch.save({"weight": torch.ones(2), "more": Command(f"touch {witness}")}, tmp_path / "m.bin")
    with pytest.raises(Failure, match=r"m\.bin holds more than tensors \(it asks for posix\.system\)"):
        pickle_headers(tmp_path / "m.bin")
    (tmp_path / "bare.bin").write_bytes(pickle.dumps(Command(f"touch {witness}")))
    with pytest.raises(Failure, match=r"bare\.bin is no file of torch\.save"):
        pickle_headers(tmp_path / "bare.bin")
    assert not witness.exists()


def saved(value: object) -> Callable[[Path], None]:
    return lambda path: torch.save(value, path)


def halved(path: Path) -> None:
    torch.save({"a": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4976698672\n")


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "ten random bytes": (lambda path: path.write_bytes(b"0123456789"), "is no file of torch.save"),
    "nothing": (lambda path: path.write_bytes(b""), "is no file of torch.save"),
    "half of it": (halved, "cannot be read as a file of torch.save"),
    "a pointer": (pointer, "is a Git LFS pointer, fetch the real file"),
    "the old format": (
        lambda path: torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False),
        "as torch writes it since 1.6",
    ),
    "a list": (saved([torch.ones(1)]), "holds no table of tensors"),
    "an empty table": (saved({}), "holds no table of tensors"),
    "a trainer's state": (saved({"state_dict": {"a": torch.ones(1)}, "epoch": 3}), "no tensors: state_dict, epoch"),
    "a module": (saved(torch.nn.Linear(2, 2)), "it asks for torch.nn.modules.linear.Linear"),
    "a transposed tensor": (saved({"a": torch.ones(3, 4).t()}), "a is no plain tensor"),
    "double precision": (saved({"a": torch.ones(1).double()}), "a has the type torch.float64"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(tmp_path: Path, fault: str) -> None:
    make, message = FAULTS[fault]
    make(tmp_path / "m.bin")
    with pytest.raises(Failure, match=r"m\.bin") as caught:
        pickle_headers(tmp_path / "m.bin")
    assert message in caught.value.message
    assert "weights_only" not in caught.value.message
    assert caught.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"none\.bin cannot be read"):
        pickle_headers(tmp_path / "none.bin")
