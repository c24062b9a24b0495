"""Another estimator beside ours: a fake package in its place, one that fails, and none at all."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftyard.doors.other_estimate import other_estimate, other_estimator_installed
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.prediction import OtherEstimate

FAKE = """
from types import SimpleNamespace

def cli_estimate(model_path, system_name, *, backend_name, isl, osl, batch_size, tp_size, gemm_quant_mode):
    if batch_size > 64:
        raise RuntimeError("no such point")
    assert (backend_name, system_name) == ("trtllm", "h200_sxm")
    assert gemm_quant_mode == "fp8_static"
    return SimpleNamespace(ttft=isl / 10, tpot=5.0 + batch_size)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "aiconfigurator" / "cli"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "api.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "aiconfigurator"]:
        del sys.modules[name]


def ask(gpu: Gpu = Gpu.H200_SXM, concurrency: int = 4) -> OtherEstimate | str:
    return other_estimate(Path("model"), gpu, 1, (1000, 100), concurrency, True)


def test_its_figures_are_taken(fake: None) -> None:
    assert other_estimator_installed()
    assert ask() == OtherEstimate("aiconfigurator", 4, 100.0, 9.0)


def test_its_failure_is_a_note(fake: None) -> None:
    assert ask(concurrency=65) == "aiconfigurator gives no estimate: no such point"
    assert ask(gpu=Gpu.H100_NVL) == "aiconfigurator has no tables for h100_nvl"
