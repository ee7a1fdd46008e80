"""Gluon's backward passes that would be wrong are refused: in another mode than forward, or of arrays written since.

What echo recomputes runs in the mode of the backward pass, and BatchNorm computes something else outside of training.
MXNet remembers nowhere in which mode a pass was recorded. So `note` writes the operators at stake into the node of
MXNet's recorded graph, from where they go when that graph goes, and `MXAutogradBackwardEx`, through which every
gradient of MXNet's Python comes, first looks for such notes where it is called with ``train_mode=False``. Records of
the arrays that are read again (`echo.runtime.watch`) go with those nodes, too, and are looked at each time.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, Iterable

import mxnet as mx
from mxnet import autograd
from mxnet.base import _LIB, NDArrayHandle, SymbolHandle
from mxnet.symbol import Symbol

from echo.errors import UnsupportedError
from echo.frontend import mxnet_settings
from echo.native.watch import Record
from echo.runtime.stand_ins import STAND_INS
from echo.runtime.watch import refuse_changed_behind

_NOTE = "__echo_trained__"


def note(output: Any, operators: Iterable[str]) -> None:
    """Notes which operators the gradients of a pass just recorded in training run again; ``output`` is one of its own.

    From then on an inference backward pass through it raises `UnsupportedError`.
    """
    _guard()
    try:
        recorded = autograd.get_symbol(output)
    except mx.MXNetError:  # nothing that went in needs a gradient, so nothing was recorded
        return
    recorded._set_attr(**{_NOTE: ",".join(sorted(operators))})  # the symbol holds the recorded node itself


def keep(record: Record, output: Any) -> None:
    """Attaches the record of the arrays that are read again to a pass just recorded, by one of its outputs.

    From then on a backward pass through it raises `ChangedInputError` where one of them was written since.
    """
    _guard()
    record.attach(output.handle)


def quiet_backward() -> None:
    """Has MXNet write no lines of `echo.frontend.mxnet_settings` in backward passes from now on."""
    _guard()
    mxnet_settings.quiet_backward()


def _guard() -> None:
    STAND_INS.put_for_good(_LIB, "MXAutogradBackwardEx", _guarded)


def _guarded(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original, assigned=())
    def backward(count: int, heads: Any, head_gradients: Any, num_variables: int, variables: Any, retain: Any,
                 create: Any, is_train: Any, *results: Any) -> int:  # fmt: skip
        if not getattr(is_train, "value", is_train):
            _refuse({name for head in heads[:count] for name in _noted(head)})
        refuse_changed_behind(count, heads, num_variables, variables)
        with mxnet_settings.in_backward():
            return original(count, heads, head_gradients, num_variables, variables, retain, create, is_train, *results)

    return backward


def _noted(head: int) -> list[str]:
    """The operators that were noted of the passes behind a head; none where it has no recorded graph."""
    handle = SymbolHandle()
    if _LIB.MXAutogradGetSymbol(NDArrayHandle(head), ctypes.byref(handle)):
        return []  # MXNet's own function says what is wrong
    noted = (attrs.get(_NOTE, "") for attrs in Symbol(handle).attr_dict().values())
    return [name for names in noted if names for name in names.split(",")]


def _refuse(operators: set[str]) -> None:
    if operators:
        keep = tuple(sorted(operators))
        raise UnsupportedError(
            f"backward(train_mode=False) behind a pass that was recorded in training, on a plan that recomputes "
            f"{', '.join(keep)}: the gradients would not be those of your own graph. Plan with keep={keep} to have "
            f"both, or record(train_mode=False)"
        )
