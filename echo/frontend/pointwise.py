"""MXNet's fusion of pointwise operators (``MXNET_USE_FUSION``), which its CUDA builds do on GPUs unless told otherwise.

It happens behind the gradient pass: what is inside of a fused operator is no node of the training graph any more, so
nothing of it can be recomputed alone, and a clone might be computed in another group than its original, with products
and sums in one instruction. So graphs that echo planned are bound without it, and held against the user's own graph
with it.
"""

from __future__ import annotations

import contextlib
import os
from typing import ContextManager

import mxnet as mx

from echo import native
from echo.ir.op_spec import means_true

FUSION_VARIABLE = "MXNET_USE_FUSION"


def fuses(ctx: mx.Context) -> bool:
    """Whether MXNet fuses pointwise operators in what the user binds on this device."""
    wanted = means_true(os.environ.get(FUSION_VARIABLE) or "1")  # MXNet takes an empty text for none
    return wanted and ctx.device_type == "gpu" and bool(mx.runtime.Features().is_enabled("CUDA_RTC"))


def unfused(ctx: mx.Context) -> ContextManager[None]:
    """While this is open, the calling thread's binds on this device leave pointwise operators as they are."""
    return native.unfused() if ctx.device_type == "gpu" else contextlib.nullcontext()
