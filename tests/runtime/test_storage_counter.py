"""Bytes of MXNet's arrays that are alive, beside what ``verify`` counts.

Bytes are looked at in a process of its own, where nobody else allocates.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import mxnet as mx
import pytest

from echo.errors import NativeError
from echo.runtime import held
from echo.runtime.storage_counter import StorageCounter

MB = 2**20
ROOT = Path(__file__).resolve().parents[2]


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something holds within a while: MXNet's engine frees an array when its turn comes, behind `waitall`."""
    for _ in range(2000):
        if holds():
            return True
        time.sleep(0.01)
    return False


def alone(function: Callable[[], None]) -> None:
    """Runs a function of this module in a process of its own."""
    program = f"import {__name__} as tests\ntests.{function.__name__}()\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{inspect.getsource(function)}\n{done.stderr}"


def array(megabytes: int) -> mx.nd.NDArray:
    made = mx.nd.zeros((megabytes, MB // 4))
    mx.nd.waitall()
    return made


def test_the_most_since_the_last_call() -> None:
    alone(most_since_the_last_call)


def most_since_the_last_call() -> None:
    counter = StorageCounter()
    try:
        kept = array(3)
        assert 3 * MB <= counter.most() < 4 * MB
        passing = array(8)
        assert 11 * MB <= counter.most() < 12 * MB
        del passing
        assert eventually(lambda: 3 * MB <= counter.most() < 4 * MB)
        with pytest.raises(LookupError, match="somebody else counts it"):
            StorageCounter()
        del kept
        assert eventually(lambda: counter.most() < MB)
    finally:
        counter.close()
    again = StorageCounter()
    assert again.most() == 0
    again.close()


def test_verify_counts_meanwhile() -> None:
    alone(verify_counts_meanwhile)


def verify_counts_meanwhile() -> None:
    counter = StorageCounter()
    try:
        kept = array(2)
        most, _ = held.held(lambda: array(5).asnumpy(), mx.cpu())
        assert 5 * MB <= most < 6 * MB
        assert 7 * MB <= counter.most() < 8 * MB, "it goes on behind"
        assert eventually(lambda: 2 * MB <= counter.most() < 3 * MB)
        passing = array(4)
        assert 6 * MB <= counter.most() < 7 * MB
        del kept, passing
    finally:
        counter.close()
    most, _ = held.held(lambda: array(5).asnumpy(), mx.cpu())
    assert 5 * MB <= most < 6 * MB


def test_where_it_cannot_be_counted_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "why_not", lambda: "MXNet's storage is not where it is expected")
    with pytest.raises(LookupError, match="MXNet's storage: MXNet's storage is not where"):
        StorageCounter()
    monkeypatch.setattr(held, "why_not", lambda: "")

    def missing() -> None:
        raise NativeError("the hook is missing")

    monkeypatch.setattr("echo.native.hook_library", missing)
    with pytest.raises(LookupError, match="the hook is missing"):
        StorageCounter()


def test_arrays_on_gpus_come_before_those_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held_bytes = {0: 5, 1: 0}
    counter = StorageCounter()
    try:
        monkeypatch.setattr(counter, "_most", held_bytes.__getitem__)
        assert counter.most() == 5
        held_bytes[1] = 3
        assert counter.most() == 3
    finally:
        counter.close()
