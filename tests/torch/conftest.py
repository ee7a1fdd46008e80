"""Tests of the torch room: they run where torch is installed, each from a fresh state of torch's compiler."""

from __future__ import annotations

import contextlib
from typing import Iterator

import pytest

from echo.system.threads import ONCE
from tests.support.mxnet_process import PYTHON
from tests.torch.oracle import Oracle

with contextlib.suppress(ImportError):  # each file says why it is skipped
    import torch._dynamo


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    from echo.torch import planner

    ONCE.forget()
    torch._dynamo.reset()
    planner.KNOWN.__init__()  # type: ignore[misc]  # schedules of an earlier test
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """MXNet, started once a session."""
    if not PYTHON.exists():
        pytest.skip(f"MXNet is the oracle, and {PYTHON} is not there: make {PYTHON.parents[1].name}/.installed-native")
    process = Oracle()
    yield process
    process.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch's own warnings about torch are no errors of ours."""
    for item in items:
        if "/tests/torch/" in str(item.fspath):
            item.add_marker(pytest.mark.filterwarnings("ignore:.*:FutureWarning:(torch|copyreg)"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch"))
