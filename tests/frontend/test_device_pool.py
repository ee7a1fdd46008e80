"""The pool of a GPU, as MXNet's variables choose it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.frontend.device_pool import pool, pool_settings
from echo.ir.training_graph import DYNAMIC, EXECUTOR, SHAPED, STATIC, MemoryPool

KIND = "MXNET_GPU_MEM_POOL_TYPE"


def test_what_is_planned_once_and_what_is_freed_at_once_comes_from_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool("cpu", DYNAMIC) is None
    assert [pool("gpu", runner) for runner in (EXECUTOR, STATIC, SHAPED)] == [None] * 3
    monkeypatch.setenv(KIND, "Unpooled")
    assert pool("gpu", DYNAMIC) is None
    assert pool_settings("gpu", DYNAMIC) == {KIND: "Unpooled"}
    assert pool_settings("gpu", EXECUTOR) == pool_settings("cpu", DYNAMIC) == {}


def test_variables_change_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    default = MemoryPool(page=4096, coarse=2 << 20, powers=False)
    assert pool("gpu", DYNAMIC) == default
    assert pool_settings("gpu", DYNAMIC) == {"MXNET_ENGINE_TYPE": "NaiveEngine"}
    monkeypatch.delenv("MXNET_ENGINE_TYPE")
    threads = pool("gpu", DYNAMIC)
    assert threads is not None
    assert threads.late > 0
    assert replace(threads, late=0) == default
    assert pool_settings("gpu", DYNAMIC) == {}
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    monkeypatch.setenv("MXNET_GPU_MEM_POOL_PAGE_SIZE", "+1024")
    monkeypatch.setenv("MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "4096")
    assert pool("gpu", DYNAMIC) == MemoryPool(page=1024, coarse=4096, powers=False)
    monkeypatch.setenv(KIND, "Round")
    monkeypatch.setenv("MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF", "12")
    assert pool("gpu", DYNAMIC) == MemoryPool(page=1024, coarse=1 << 12, powers=True)
    monkeypatch.setenv("MXNET_GPU_MEM_POOL_PAGE_SIZE", "many")
    monkeypatch.setenv(KIND, "")
    monkeypatch.setenv("MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "")
    assert pool("gpu", DYNAMIC) == default
    monkeypatch.setenv("MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "-5")
    negative = pool("gpu", DYNAMIC)
    assert negative is not None
    assert negative.handed_out(3_000_000) == 3_002_368, "to MXNet, that is larger than any array"
