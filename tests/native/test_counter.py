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

pytestmark = pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="another library counts allocations already")
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
WRITTEN = """
import ctypes
from echo.native import counter

MB, libc = 2**20, ctypes.CDLL(None)
libc.free.argtypes = (ctypes.c_void_p,)
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
libc.mallopt(-3, 64 * 1024)  # larger blocks come from the system, without memory of blocks that were freed

def block(size, written):
    made = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(made), 64, size) == 0
    libc.memset(made, 1, written)
    return made

def near(expected):
    assert abs(counter.written_peak() - start - expected) <= MB // 8, (counter.written_peak() - start, expected)

counter.reset()
start = counter.written_peak()
whole, half = block(32 * MB, 32 * MB), block(64 * MB, 32 * MB)
near(64 * MB)
libc.memset(half, 1, 40 * MB)
libc.free(half)
near(72 * MB)                    # as it was when the block was freed
none = block(96 * MB, 0)         # the most is allocated now
near(72 * MB)
assert counter.peak() - counter.written_peak() > 50 * MB
quarter = block(48 * MB, 12 * MB)
near(72 * MB)
libc.memset(none, 1, 30 * MB)
near(74 * MB)
for each in (whole, none, quarter):
    libc.free(each)
near(74 * MB)
counter.reset()
near(0)
"""


ODD = """
import ctypes, os, threading
from echo.native import counter

libc = ctypes.CDLL(None)
libc.free.argtypes = (ctypes.c_void_p,)
start, made = counter.now(), ctypes.c_void_p()
assert libc.posix_memalign(ctypes.byref(made), 3, 8) == 22, "EINVAL"
assert libc.posix_memalign(ctypes.byref(made), 16, 1000) == 0
assert counter.now() == start, "blocks with less alignment are not counted"
libc.free(made)
assert counter.now() == start
going = True

def allocate():
    made = ctypes.c_void_p()
    while going:
        assert libc.posix_memalign(ctypes.byref(made), 64, 4096) == 0
        libc.free(made)

threads = [threading.Thread(target=allocate) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        libc.posix_memalign(ctypes.byref(made), 64, 4096)
        libc.free(made)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
going = False
"""


def test_blocks_are_counted_until_they_are_freed() -> None:
    environment = {**os.environ, **counter.preloaded(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"


def test_written_blocks_have_a_peak_of_their_own() -> None:
    environment = {**os.environ, **counter.preloaded(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", WRITTEN], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_libraries_preloaded_before_stay_preloaded() -> None:
    (variable,) = counter.preloaded({"LD_PRELOAD": "/other.so"}).values()
    assert variable.endswith("libecho_counter.so:/other.so")
    assert not counter.preloaded({})["LD_PRELOAD"].endswith(":")


def test_a_process_without_it_does_not_count() -> None:
    assert not counter.counting()
    for ask in (counter.now, counter.peak, counter.written_peak, counter.reset):
        with pytest.raises(NativeError, match=r"expected libecho_counter\.so to be preloaded"):
            ask()


def test_missing_counter_raises_native_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "__path__", [str(tmp_path)])
    with pytest.raises(NativeError, match=r"libecho_counter\.so was not built"):
        counter.preloaded()


def test_a_forked_child_allocates_and_odd_alignments_are_those_of_the_c_library() -> None:
    environment = {**os.environ, **counter.preloaded(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ODD], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
