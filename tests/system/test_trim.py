"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from echo.system import trim

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


def test_heap_is_trimmed_only_after_large_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(trim, "trim", lambda: trimmed.append(1))
    trim.trim_after(10)
    assert trimmed == []
    trim.trim_after(10_000)
    assert trimmed == [1]


LARGE = """
import ctypes
import os
from echo.system.resident import resident
from echo.system.trim import return_large_blocks
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
print(int(return_large_blocks()))
def block():
    found = libc.malloc(20 << 20)
    ctypes.memset(found, 1, 20 << 20)
    return found
libc.free(libc.malloc(31 << 20))  # from here on glibc would have such blocks come from the heap
blocks = [block() for _ in range(4)]
before = resident("VmRSS")
for one in blocks[:-1]:
    libc.free(one)
print(before - resident("VmRSS"))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
@pytest.mark.parametrize("variables", [{}, {"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}])
def test_large_blocks_go_back_unless_the_user_set_the_threshold(variables: dict[str, str]) -> None:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", LARGE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**kept, **variables})
    sets, returned = map(int, done.stdout.split())
    assert (sets, returned > 50 << 20) == (not variables, not variables)
