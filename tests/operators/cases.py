"""All cases, and what is registered."""

from __future__ import annotations

import ctypes

import mxnet as mx
from mxnet.base import _LIB, check_call

from tests.operators.case import Case
from tests.operators.tables import algebra, elementwise, layers, moving, special

CASES: tuple[Case, ...] = tuple(
    dict.fromkeys([*layers.CASES, *elementwise.CASES, *special.CASES, *moving.CASES, *algebra.CASES])
)


def registered() -> set[str]:
    """The operators that MXNet knows, without aliases, gradients and what other tests add."""
    found = set()
    for name in mx.operator.get_all_registered_operators():
        handle, real = ctypes.c_void_p(), ctypes.c_char_p()
        check_call(_LIB.NNGetOpHandle(name.encode(), ctypes.byref(handle)))
        check_call(_LIB.MXSymbolGetAtomicSymbolName(handle, ctypes.byref(real)))
        found.add((real.value or b"").decode())
    return {name for name in found if "backward" not in name}
