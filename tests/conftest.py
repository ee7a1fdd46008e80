"""Options of the tests, which of them are slow, and the fixtures that all share (`tests/support/fixtures_*`)."""

from __future__ import annotations

import gc
import importlib.util
import os
from typing import Iterator

import pytest

from echo.plans.variables import DEBUG_VARIABLE
from tests.support.parts import is_slow, mark_slow, share

# `make test-torch` has no MXNet: its tests need none of these fixtures.
TOPICS = ("golden", "isolation", "planning") if importlib.util.find_spec("mxnet") else ()
pytest_plugins = [f"tests.support.fixtures_{topic}" for topic in TOPICS]
os.environ[DEBUG_VARIABLE] = "check"  # also for the processes that tests start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests got into tests/golden/")
    parser.addoption("--part", metavar="K/N", help="each N-th slow case alone, from the K-th on")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spares the garbage collector thousands of tests, which live to the end: no collection walks over them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_slow(items)
    part = config.getoption("--part")
    if part:
        first, step = map(int, part.split("/"))
        items[:] = share([(item, is_slow(item)) for item in items], first, step)
