"""The pool from which MXNet allocates on a GPU (``src/storage/pooled_storage_manager.h`` of MXNet 1.9.1).

A bind, or a CachedOp with ``static_alloc``, allocates what it plans once. A CachedOp without allocates as it runs, and
so holds what the pool keeps for it.
"""

from __future__ import annotations

import os

from echo.ir.storage import MemoryPool
from echo.ir.training_graph import DYNAMIC

_TYPE, _PAGE = "MXNET_GPU_MEM_POOL_TYPE", "MXNET_GPU_MEM_POOL_PAGE_SIZE"
_COARSE, _CUTOFF = "MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF"


def pool(device: str, runner: str) -> MemoryPool | None:
    """The pool that a graph with this runner allocates from as it runs; None where nothing keeps what is freed."""
    kind = os.environ.get(_TYPE) or "Naive"
    if device != "gpu" or runner != DYNAMIC or kind == "Unpooled":
        return None
    page = _number(_PAGE, 4096)
    if kind == "Round":
        return MemoryPool(page, 1 << _number(_CUTOFF, 24), powers=True)
    return MemoryPool(page, _number(_COARSE, 2 << 20), powers=False)


def pool_settings(device: str, runner: str) -> dict[str, str]:
    """The variables by which the pool is not MXNet's default, as settings of plans."""
    if device != "gpu" or runner != DYNAMIC:
        return {}
    return {name: os.environ[name] for name in (_TYPE, _PAGE, _COARSE, _CUTOFF) if os.environ.get(name)}


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() and int(text) else default
