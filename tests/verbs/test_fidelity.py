"""The command that tells what FP8 costs: on a tiny recipe, and with thresholds on the demo's real target."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fakes.tiny_recipe import write_recipe
from tests.house.source_map import ROOT

from draftyard.cli import main
from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.fidelity_probe import compare_checkpoints
from draftyard.nouns.fidelity_figures import Fidelity
from draftyard.verbs.build import build
from draftyard.verbs.build_choices import ENGINES, BuildOptions
from draftyard.verbs.fidelity import FidelityOptions, fidelity
from draftyard.verbs.running import Watcher

TARGET = ROOT / "engines" / "out" / "models" / "smollm2-135m-instruct"
PROMPTS = ROOT / "engines" / "demo" / "prompts"
DEMO = f"""version: 1
name: demo-fp8
target: {{path: {TARGET}}}
lanes: [reference]
gpus: [cpu]
precisions: [bf16, fp8]
quantisation:
  kv_cache: fp8
  calibration: {{prompts: {PROMPTS / "train.jsonl"}, samples: 32, max_tokens: 96}}
verify: {{prompts: {PROMPTS / "test.jsonl"}}}
"""


class Silent(Watcher):
    """Nobody watches."""

    def started(self, step: object) -> None: ...

    def progressed(self, step: object, share: float, words: str) -> None: ...

    def finished(self, step: object, made: bool, seconds: float) -> None: ...

    def told(self, words: str) -> None: ...


def tiny(root: Path, precisions: str = "[fp16, fp8]") -> Path:
    (root / "texts").write_text("\n".join(f"a w{4 + index} w5 w{4 + index * 5 % 40} w9" for index in range(16)))
    quantisation = "quantisation: {calibration: {prompts: texts}}"
    changes = (
        ("precisions: [fp32]", f"precisions: {precisions}\n{quantisation}"),
        ("  - {kind: draft_target, path: draft, max_draft_len: 2}\n", ""),
    )
    return write_recipe(root, changes)


def test_both_checkpoints_of_a_recipe_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = tiny(tmp_path), tmp_path / "out"
    words = [str(recipe), "--out", str(out)]
    assert main(["build", *words]) == 0
    capsys.readouterr()
    assert main(["fidelity", *words, "--texts", str(tmp_path / "texts"), "--samples", "5", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["texts"], found["tokens"]) == (5, 25)
    assert 0.5 < found["greedy_agreement"] <= 1
    assert 0 < found["mean_kl_nats"] < found["p99_kl_nats"] < 0.1
    assert main(["fidelity", *words, "--texts", str(tmp_path / "texts")]) == 0
    assert "same likeliest next token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("precisions", "message"),
    [("[fp16, fp8]", "checkpoint target fp16 tp1 pp1 is not built"), ("[fp8]", "no 16-bit precision")],
)
def test_what_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], precisions: str, message: str
) -> None:
    recipe = tiny(tmp_path, precisions)
    assert main(["fidelity", str(recipe), "--out", str(tmp_path), "--texts", str(tmp_path / "texts")]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The demo target in bf16 and FP8: the recipe, and where it was built."""
    root = tmp_path_factory.mktemp("demo")
    (root / "recipe.yaml").write_text(DEMO)
    build(root / "recipe.yaml", BuildOptions(root / "out", ENGINES), Silent())
    return root / "recipe.yaml", root / "out"


on_the_demo = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not TARGET.is_dir(), reason="the demo target has not been made (make demo)"),
]


def mark(function: Callable[..., None]) -> Callable[..., None]:
    for one in on_the_demo:
        function = one(function)
    return function


@mark
def test_fp8_stays_near_the_demo_target(demo: tuple[Path, Path]) -> None:
    recipe, out = demo
    found = fidelity(recipe, FidelityOptions(out, samples=10), lambda share, words: None)
    assert found.tokens > 200
    assert found.agreement > 0.80
    assert found.mean_divergence < 0.25


@mark
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("transformer.layers.7.mlp.fc.activation_scaling_factor", 1 / 64),
        ("transformer.layers.20.attention.qkv.activation_scaling_factor", 1 / 64),
        ("transformer.layers.12.attention.dense.weights_scaling_factor", 2.0),
    ],
)
def test_a_planted_scale_is_caught_on_the_demo_target(
    demo: tuple[Path, Path], tmp_path: Path, name: str, factor: float
) -> None:
    out = demo[1]
    checkpoints = [path for path in (out / "engines/out/checkpoint").iterdir() if (path / "config.json").is_file()]
    configs = {path: json.loads((path / "config.json").read_text()) for path in checkpoints}
    plain, fp8 = sorted(checkpoints, key=lambda path: str(configs[path]["quantization"]["quant_algo"]), reverse=True)
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    tensors = load_file(fp8 / "rank0.safetensors")
    tensors[name] = tensors[name] * factor
    if name.endswith("mlp.fc.activation_scaling_factor"):
        gate = name.replace(".fc.", ".gate.")
        tensors[gate] = tensors[gate] * factor
    save_file(tensors, spoiled / "rank0.safetensors")
    shutil.copy(fp8 / "config.json", spoiled)
    found = on_test_prompts(plain, spoiled, configs[plain], configs[fp8])
    assert found.agreement < 0.80 or found.mean_divergence > 0.25


def on_test_prompts(first: Path, second: Path, config: dict[str, object], other: dict[str, object]) -> Fidelity:
    from draftyard.doors.calibration_texts import encode_texts, find_calibration_files, read_calibration_texts

    texts = read_calibration_texts(find_calibration_files(PROMPTS / "test.jsonl"), "text", 10)
    samples = encode_texts(TARGET, texts, 256)
    torch.set_num_threads(2)
    return compare_checkpoints((first, config), (second, other), open_tensor_file, samples, lambda share, words: None)
