"""Marks every test of this folder `gpu`, and skips it with the reason where there is no GPU to run it on."""

from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent


def why_not() -> str:
    """Empty where CUDA works."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build; install one with CUDA to run this"
    if not torch.cuda.is_available():
        return "no CUDA device is visible on this machine"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def device() -> str:
    return "cuda"
