"""The setting of a bind, as the patterns of fused operators read it (`echo.ir.setting`)."""

from __future__ import annotations

import os
from typing import Sequence

import mxnet as mx

from echo.frontend.symbols import Binding
from echo.ir.setting import Setting

COPIES_VARIABLE = "MXNET_CPU_PARALLEL_RAND_COPY"  # of MXNet's generators on the CPU, used in turns


def setting_of(names: Sequence[str], binding: Binding, device: str) -> Setting:
    """The setting of a bind with arguments of these names on a kind of device."""
    untrained = frozenset(name for name, request in zip(names, binding.grad_req) if request == "null")
    return Setting(untrained, device == "cpu" and _draws_as_mxnet())


def has_one_generator() -> bool:
    """Whether one generator draws all of MXNet's numbers on the CPU."""
    return os.environ.get(COPIES_VARIABLE, "1") == "1"


def _draws_as_mxnet() -> bool:
    """Whether kernels can go on from the states of MXNet's generator, which is not MKL's."""
    return has_one_generator() and not mx.runtime.Features().is_enabled("BLAS_MKL")
