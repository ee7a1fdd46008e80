"""The pool from which MXNet allocates on a GPU (``src/storage/pooled_storage_manager.h`` of MXNet 1.9.1).

A bind, or a CachedOp with ``static_alloc``, allocates what it plans once. A CachedOp without allocates as it runs, and
so holds what the pool keeps for it.
"""

from __future__ import annotations

import os

from echo.ir.training_graph import DYNAMIC, MemoryPool

_TYPE, _PAGE = "MXNET_GPU_MEM_POOL_TYPE", "MXNET_GPU_MEM_POOL_PAGE_SIZE"
_ENGINE = "MXNET_ENGINE_TYPE"
_COARSE, _CUTOFF = "MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF"


# MXNet's threads free an array a moment after its last reader has run. With so many nodes between, the fake device sees
# 0.9 to 1.1 of what is planned of ResNet-18 v2, MobileNet v2, LSTM cells and a perceptron; with none, 0.8 to 0.95.
_LATE = 3


def pool(device: str, runner: str) -> MemoryPool | None:
    """The pool that a graph with this runner allocates from as it runs; None where nothing keeps what is freed."""
    kind = os.environ.get(_TYPE) or "Naive"
    if device != "gpu" or runner != DYNAMIC or kind == "Unpooled":
        return None
    page = max(_number(_PAGE, 4096), 1)
    late = 0 if os.environ.get(_ENGINE) == "NaiveEngine" else _LATE
    if kind == "Round":
        return MemoryPool(page, 1 << min(max(_number(_CUTOFF, 24), 0), 62), powers=True, late=late)
    coarse = _number(_COARSE, 2 << 20)  # a negative one is larger than any array, to MXNet
    return MemoryPool(page, coarse if coarse > 0 else 1 << 62, powers=False, late=late)


def pool_settings(device: str, runner: str) -> dict[str, str]:
    """The variables by which the pool is not MXNet's default, as settings of plans."""
    if device != "gpu" or runner != DYNAMIC:
        return {}
    return {name: os.environ[name] for name in (_TYPE, _PAGE, _COARSE, _CUTOFF, _ENGINE) if os.environ.get(name)}


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, "")) or default
    except ValueError:
        return default  # MXNet says what is wrong
