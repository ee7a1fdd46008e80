"""Reversals of sequences: along the first axis, and no other."""

from __future__ import annotations

import mxnet as mx

from echo.passes.patterns.single_operators import SEQUENCE_REVERSE
from tests.passes.patterns.near_misses import Symbol, assert_found, assert_nothing, var


def reversed_batch() -> Symbol:
    return mx.sym.reverse(var("x"), axis=1)


def test_reversal_along_the_first_axis_is_found() -> None:
    assert_found(lambda: mx.sym.SequenceReverse(var("x")), SEQUENCE_REVERSE.name)


def test_another_structure_is_not_found() -> None:
    assert_nothing(reversed_batch)
