"""Words in, exit code and two lines out; a wrong request writes nothing, and `plan` never loads torch."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.tiny_model import config_of, random_weights, split_model
from tests.fakes.tiny_recipe import write_recipe

from draftyard.cli import main
from draftyard.doors.store import StoreRoots
from draftyard.nouns.blueprint import StepKind

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "plan-tiny.json"


def no_model(root: Path) -> None:
    shutil.rmtree(root / "target")


def missing_shard(root: Path) -> None:
    split_model(root / "target", random_weights(config_of()))
    (root / "target" / "model-00002-of-00002.safetensors").unlink()


def unreadable_config(root: Path) -> None:
    (root / "target" / "config.json").write_text('{"model_type": ')


def unknown_family(root: Path) -> None:
    (root / "target" / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')


def another_tokenizer(root: Path) -> None:
    text = (root / "draft" / "tokenizer.json").read_text()
    (root / "draft" / "tokenizer.json").write_text(text.replace("w9", "v9"))


def recipe_change(old: str, new: str) -> Callable[[Path], None]:
    return lambda root: (write_recipe(root, ((old, new),)), None)[1]


FAULTS: list[tuple[Callable[[Path], None], str, str]] = [
    (no_model, "is no directory", "give the directory"),
    (missing_shard, "model-00002-of-00002.safetensors", ""),
    (unreadable_config, "config.json is no valid JSON at line 1", "correct config.json"),
    (unknown_family, "gpt2", ""),
    (another_tokenizer, "token ids of target and draft differ", "same tokenizer"),
    (recipe_change("max_batch_size", "max_bach_size"), "nearest known one is max_batch_size", "write limits.max_batch"),
    (recipe_change("[fp32]", "[fp8]"), "fp8 needs texts to calibrate with", "add quantisation.calibration"),
    (recipe_change("[reference]", "[tensorrt]"), "tensorrt lane", "lane reference"),
    (recipe_change("{path: target}", "{path: target, tp_size: 3}"), "tp_size 3 does not fit", "set tp_size"),
    (recipe_change("max_seq_len: 64", "max_seq_len: 999"), "exceeds the target's", "lower limits.max_seq_len"),
    (recipe_change("path: draft", "path: target"), "the draft is the target itself", "smaller model"),
    (recipe_change("name: tiny", "name: tiny\nname: b"), "is given twice", "keep one"),
]


@pytest.mark.parametrize(("spoil", "message", "hint"), FAULTS)
@pytest.mark.parametrize("command", ["plan", "package"])
def test_bad_input(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    spoil: Callable[[Path], None],
    message: str,
    hint: str,
) -> None:
    recipe = write_recipe(tmp_path)
    spoil(tmp_path)
    assert main([command, str(recipe), "--out", str(tmp_path / "out")]) == 2
    what, todo = read_error(capsys)
    assert message in what
    assert hint in todo
    made = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != "content-hashes.json"]
    assert made == []


def read_error(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    what, todo = captured.err.splitlines()[-2:]
    assert what.startswith("error: ")
    assert todo.startswith("hint: ")
    return what, todo


def test_a_foreign_file_in_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    assert main(["plan", str(recipe), "--out", str(out), "--format", "json"]) == 0
    key = json.loads(capsys.readouterr().out)["steps"][0]["key"]
    place = StoreRoots(out).folder(StepKind.CHECKPOINT) / key
    place.parent.mkdir(parents=True)
    place.write_text("")
    assert main(["build", str(recipe), "--out", str(out)]) == 2
    assert "is a file where checkpoint target" in read_error(capsys)[0]
    assert list(place.parent.iterdir()) == [place]


def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftyard.verbs.convert.free_bytes", lambda directory: 5)
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    assert main(["build", str(recipe), "--out", str(out)]) == 3
    what, todo = read_error(capsys)
    assert "bytes, 5 are free" in what
    assert "free disk space" in todo
    assert list(StoreRoots(out).folder(StepKind.CHECKPOINT).glob("[!.]*")) == []
    assert list(out.rglob(".staging-*")) == []


def test_a_newer_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    assert main(["build", str(recipe), "--out", str(out), "--format", "json"]) == 0
    place = Path(json.loads(capsys.readouterr().out)[0]["path"])
    receipt = json.loads((place / "receipt.json").read_text())
    (place / "receipt.json").write_text(json.dumps({**receipt, "store_format": 9}))
    assert main(["build", str(recipe), "--out", str(out)]) == 2
    assert "newer version" in read_error(capsys)[0]


def masked(text: str, root: Path) -> str:
    """Keys depend on the guests and on how the tokenizer's library writes; their pattern does not."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found.group(), f"key {len(names) + 1}")

    return re.sub(r"\b[0-9a-f]{64}\b", name, text.replace(str(root), "ROOT"))


def test_the_plan_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    assert main(["plan", str(recipe), "--out", str(tmp_path / "out"), "--format", "json"]) == 0
    assert masked(capsys.readouterr().out, tmp_path) == GOLDEN.read_text()


def test_plan_loads_neither_torch_nor_a_client(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    program = (
        "import sys; from draftyard.cli import main; "
        f"code = main(['plan', {str(recipe)!r}, '--out', {str(tmp_path)!r}]); "
        "sys.exit(code or ('torch' in sys.modules) or ('tritonclient' in sys.modules))"
    )
    environment = {"PYTHONPATH": str(ROOT / "build"), "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "missing" in done.stdout
    assert "\x1b" not in done.stdout


def test_init_writes_what_plan_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recipe(tmp_path)
    recipe = tmp_path / "recipes" / "new.yaml"
    words = ["init", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--output", str(recipe)]
    assert main(words) == 0
    assert "max_batch_size: 8  # Sequences decoded at once." in recipe.read_text()
    assert main(["plan", str(recipe), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "exists already" in read_error(capsys)[0]


def test_values_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recipe(tmp_path)
    assert main(["schema"]) == 0
    assert "max_batch_size" in json.loads(capsys.readouterr().out)["$defs"]["Limits"]["properties"]
    assert main(["inspect", str(tmp_path / "target"), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["family"], facts["layers"], facts["end_ids"]) == ("llama", 3, [2, 3])
    assert main(["inspect", str(tmp_path / "target")]) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out
    assert main(["completion", "bash"]) == 0
    assert "draftyard" in capsys.readouterr().out


def test_doctor_fails_when_something_needed_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftyard.verbs.doctor.package_version", lambda name: None if name == "torch" else "1")
    assert main(["doctor", "--format", "json"]) == 3
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["torch"]["finding"] == "missing"
    assert checks["torch"]["hint"] == "pip install torch"
    assert checks["python"]["finding"] == "ok"


def test_an_interrupt_has_its_own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(model: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftyard.verbs.source_facts.directory_facts", interrupt)
    assert main(["inspect", str(tmp_path)]) == 130


def test_wrong_words_are_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["bild"], ["build"], ["build", "r.yaml", "--worker", "2"], ["build", "r.yaml", "--workers", "0"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("draftyard ")
