"""Holds for every test: nothing connects beyond this machine."""

import pytest
from tests.fakes.loopback_only import install


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> None:
    install()
