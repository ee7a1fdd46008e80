"""Blocks that are allocated are counted in a process that has the library preloaded, and in no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo import native
from echo.errors import NativeError
from echo.native import counter

pytestmark = pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="allocations are somebody else's already")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import ctypes
from echo.native import counter

libc = ctypes.CDLL(None)
libc.free.argtypes = (ctypes.c_void_p,)

def block(size):
    made = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(made), 64, size) == 0
    return made

start = counter.now()
first, second = block(1_000_000), block(2_000_000)
assert counter.now() - start == 3_000_000, counter.now()
libc.free(first)
assert (counter.now() - start, counter.peak() - start) == (2_000_000, 3_000_000)
counter.reset()
assert counter.peak() - start == 2_000_000
libc.free(second)
assert (counter.now(), counter.peak() - start) == (start, 2_000_000)
print(counter.counting())
"""


def test_blocks_are_counted_until_they_are_freed() -> None:
    environment = {**os.environ, **counter.preloaded(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"


def test_what_was_preloaded_before_stays() -> None:
    (variable,) = counter.preloaded({"LD_PRELOAD": "/other.so"}).values()
    assert variable.endswith("libecho_counter.so:/other.so")
    assert not counter.preloaded({})["LD_PRELOAD"].endswith(":")


def test_a_process_without_it_does_not_count() -> None:
    assert not counter.counting()
    for ask in (counter.now, counter.peak, counter.reset):
        with pytest.raises(NativeError, match=r"expected libecho_counter\.so to be preloaded"):
            ask()


def test_without_the_library_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "__path__", [str(tmp_path)])
    with pytest.raises(NativeError, match=r"libecho_counter\.so was not built"):
        counter.preloaded()
