"""The processor has a text of its own, and a number of cores."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from echo.ir.graph import Node
from echo.ir.training_node import TrainingNode
from echo.system import process
from echo.system import process as module
from echo.system.process import (
    cores,
    is_whole_library,
    processor,
    reset_peak,
    resident,
    without_garbage_collection,
)
from echo.system.terminal import MB


def test_the_processor_is_named() -> None:
    assert len(processor().split()) >= 5


def test_library_that_was_cut_off_is_not_whole(tmp_path: Path) -> None:
    whole = next(path for path in Path(sys.prefix).rglob("libecho_planner.so")).read_bytes()
    found = set()
    for end in (0, 4, 63, 64, len(whole) // 2, len(whole) - 1, len(whole)):
        (tmp_path / "some.so").write_bytes(whole[:end])
        if is_whole_library(tmp_path / "some.so"):
            found.add(end)
    assert found == {len(whole)}


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x01\x01" + bytes(200), b"import mxnet\n" * 20])
def test_file_without_library_is_not_whole(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "some.so").write_bytes(content)
    assert not is_whole_library(tmp_path / "some.so")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("on", [True, False])
def test_a_child_that_another_thread_forks_meanwhile_searches_as_before(on: bool) -> None:
    before, ready, done = gc.isenabled(), threading.Event(), threading.Event()

    def plan() -> None:
        with without_garbage_collection():
            ready.set()
            done.wait(60)

    planner = threading.Thread(target=plan)
    try:
        (gc.enable if on else gc.disable)()
        planner.start()
        assert ready.wait(60)
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() == on else 1)
        status = os.waitpid(child, 0)[1]
        assert not gc.isenabled()
        done.set()
        planner.join()
        assert gc.isenabled() == on
    finally:
        done.set()
        (gc.enable if before else gc.disable)()
    assert os.WEXITSTATUS(status) == 0
    assert processor() == processor()


def test_the_cores_of_this_process_are_counted() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_resident_memory_is_at_most_its_peak() -> None:
    assert MB < resident("VmRSS") <= resident("VmHWM")


def test_unknown_line_is_zero() -> None:
    assert resident("nothing") == 0


def test_system_without_proc_is_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: module.Path) -> None:
    monkeypatch.setattr(module, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(module, "_RESET", tmp_path / "none" / "none")
    reset_peak()
    assert resident("VmRSS") == 0


@pytest.mark.parametrize("on", [True, False])
def test_garbage_collection_is_off_inside_and_restored_afterwards(on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with contextlib.suppress(KeyError), without_garbage_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()


PROGRAM = """
import ctypes, os
from echo.system.process import trim
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
def test_free_heap_memory_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 32 << 20


def test_heap_is_trimmed_only_after_large_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(process, "trim", lambda: trimmed.append(1))
    process.trim_after(10)
    assert trimmed == []
    process.trim_after(10_000)
    assert trimmed == [1]


LARGE = """
import ctypes
import os
from echo.system.process import resident
from echo.system.process import return_large_blocks
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


def test_nodes_have_no_dictionary_from_python_3_10_on() -> None:
    for value in (Node("tanh", "a"), TrainingNode("tanh", "a", ())):
        assert hasattr(value, "__dict__") == (sys.version_info < (3, 10))
