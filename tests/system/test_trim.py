"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os
from echo.system.trim import trim
libc = ctypes.CDLL(None)
libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: large blocks come from the heap, too
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
blocks = [libc.malloc(1 << 16) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 16)
for block in blocks[:-1]:  # the last one keeps the heap from getting shorter
    libc.free(block)
before = resident()
trim()
print(before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
def test_what_is_free_in_the_middle_of_the_heap_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 32 << 20
