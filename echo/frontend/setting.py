"""The setting of a bind, as the patterns of fused operators read it (`echo.ir.graph`)."""

from __future__ import annotations

import os
from typing import Sequence

import mxnet as mx

from echo.frontend.symbols import Binding
from echo.ir.graph import Setting

COPIES_VARIABLE = "MXNET_CPU_PARALLEL_RAND_COPY"  # of MXNet's generators on the CPU, used in turns
RNN_VARIABLES = ("MXNET_MKLDNN_ENABLED", "MXNET_USE_MKLDNN_RNN")


def setting_of(names: Sequence[str], binding: Binding, device: str) -> Setting:
    """The setting of a bind with arguments of these names on a kind of device."""
    untrained = frozenset(name for name, request in zip(names, binding.grad_req) if request == "null")
    on_cpu = device == "cpu"
    return Setting(untrained, on_cpu and _draws_as_mxnet(), on_cpu and _has_onednn_rnn())


def has_one_generator() -> bool:
    """Whether one generator draws all of MXNet's numbers on the CPU."""
    return os.environ.get(COPIES_VARIABLE, "1") == "1"


def _draws_as_mxnet() -> bool:
    """Whether kernels can go on from the states of MXNet's generator, which is not MKL's."""
    return has_one_generator() and not mx.runtime.Features().is_enabled("BLAS_MKL")


def _has_onednn_rnn() -> bool:
    """Whether oneDNN runs RNN operators of float32: that of MXNet 1.9.1 never reads their ``p``."""
    chosen = all((os.environ.get(name) or "1") == "1" for name in RNN_VARIABLES)
    return chosen and bool(mx.runtime.Features().is_enabled("MKLDNN"))
