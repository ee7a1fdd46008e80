"""Tests of GPU contexts run on the fake device alone: ``make test-gpu-contexts``."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import mxnet as mx
import pytest

from tests.fake_gpu import device

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device.is_there():
        return
    skip = pytest.mark.skip(reason="needs a CUDA wheel of MXNet on the fake device: make test-gpu-contexts")
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_complaints() -> Iterator[None]:
    """The device has nothing to complain about, whatever a test does."""
    if not device.is_there():
        yield
        return
    mx.nd.waitall()
    device.reset()
    yield
    mx.nd.waitall()
    assert device.complaints() == []
