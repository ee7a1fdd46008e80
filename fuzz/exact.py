"""Programs in float64, to see which of two results in float32 is nearer to what they stand for."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from typing import Any, Iterator
from unittest import mock

import mxnet as mx
from mxnet.gluon.rnn import RecurrentCell

from fuzz.program import Program

# random numbers depend on the type
_DRAWS = re.compile(r"\brandom\b|Zoneout|\bdropout|RNN\(.*\bp=|float16")
_DROPOUT = re.compile(r"Dropout|\bp=")
_SINGLE = "mx.sym.contrib.interleaved_matmul_selfatt_qk(mx.sym.Concat({0}, {0}, {0}, dim=2), heads=1)"
_SINGLE_ONES = "ones_that_stay_single"
_ROWS = "mx.sym.transpose({1}, axes=(1, 0, 2))"
_PRODUCT = f"{{0}} * mx.sym.batch_dot({_ROWS}, {_ROWS}, transpose_b=True)"
_TYPES = {"dtype": ("float32", "float64"), "__dtype__": ("0", "1")}  # attributes: float32, float64


def comparable(program: Program) -> bool:
    """Whether the program in float64 computes the same: it draws no random numbers, and has no float16.

    It may have Dropout, if it is float32 that it is made of: its symbol is then built while `dropout_in_single` is
    open.
    """
    code = "\n".join(program.lines[number].code for number in program.needed())
    return not _DRAWS.search(code) and not (_DROPOUT.search(code) and "float64" in code)


@contextlib.contextmanager
def dropout_in_single() -> Iterator[None]:
    """While this is open, Dropout multiplies by itself of ones in float32, which draws the numbers of float32."""
    own = mx.sym.Dropout

    def dropout(data: Any, name: Any = None, **options: Any) -> Any:
        ones = mx.sym.Cast(mx.sym.ones_like(data), dtype="float32", name=_SINGLE_ONES)
        return data * mx.sym.Cast(own(ones, **options), dtype="float64")

    with mock.patch.object(mx.sym, "Dropout", dropout):
        yield


def program_in_float64(program: Program) -> Program:
    """A block's program on float64; `fuzz.block_training` casts its layers."""
    lines = tuple(
        replace(line, code=line.code.replace("float32", "float64"), dtype=line.dtype.replace("float32", "float64"))
        for line in program.lines
    )
    return replace(program, lines=lines, how={**program.how, "float64": 1})


@contextlib.contextmanager
def states_in_float64() -> Iterator[None]:
    """While this is open, cells begin with states of float64 where they are given none."""
    own = RecurrentCell.begin_state

    def begin_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        return own(self, *args, **{"dtype": "float64", **kwargs})

    with mock.patch.object(RecurrentCell, "begin_state", begin_state):
        yield


def without_single(program: Program) -> Program:
    """The program with an operator that MXNet has in float32 alone written in others."""
    lines = list(program.lines)
    for number, line in enumerate(lines):
        if line.code == _SINGLE and (shape := lines[line.inputs[0]].shape):
            lines[number] = replace(line, code=_PRODUCT.format(shape[2] ** -0.5, "{0}"))
    return replace(program, lines=tuple(lines))


def symbol_in_float64(symbol: Any) -> Any:
    """The symbol with float64 wherever it says float32."""
    graph = json.loads(symbol.tojson(remove_amp_cast=False))
    _change(graph)
    return mx.sym.load_json(json.dumps(graph))


def _change(value: Any) -> None:
    """Of a graph, its nodes and the graphs inside them."""
    if isinstance(value, list):
        for each in value:
            _change(each)
    elif isinstance(value, dict):
        attributes = value.get("attrs")
        if value.get("name") == _SINGLE_ONES:
            return
        if value.get("op") == "Embedding":
            attributes.setdefault("dtype", "float32")
        for name, (single, double) in _TYPES.items():
            if isinstance(attributes, dict) and attributes.get(name) == single:
                attributes[name] = double
        for each in value.values():
            _change(each)
