"""Dot attention: which is found, and why other is not."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import pytest

from echo.passes.patterns.attention import ATTENTION
from tests.passes.patterns.near_misses import (
    Miss,
    Symbol,
    assert_found,
    assert_missed,
    assert_nothing,
    dropped,
    same,
    var,
)

MASK, QKV = var("mask"), var("qkv")  # each once in a symbol


def dot(
    scores: Callable[[Symbol], Symbol] = same,
    weights: Callable[[Symbol], Symbol] = same,
    seen: bool = False,
    **more: Any,
) -> Symbol:
    """Dot attention of queries [N,T,D], keys and values [N,S,D]."""
    product = mx.sym.batch_dot(var("q"), var("k"), transpose_b=True, name="product")
    weighted = weights(mx.sym.softmax(scores(product), name="softmax", **more))
    found = mx.sym.batch_dot(weighted, var("values"), name="out")
    return mx.sym.Group([found, product]) if seen else found


def masked(x: Symbol, axis: int = 0, value: float = -1e9) -> Symbol:
    turned = mx.sym.transpose(x, axes=(2, 0, 1))
    ruled = mx.sym.SequenceMask(turned, var("lengths"), use_sequence_length=True, axis=axis, value=value)
    return mx.sym.transpose(ruled, axes=(1, 2, 0))


def biased(x: Symbol) -> Symbol:
    return mx.sym.broadcast_add(x, mx.sym.BlockGrad(var("bias")))


def both(found: Symbol) -> Symbol:
    return mx.sym.Group([found, found.get_internals()["softmax_output"]])


def selected(x: Symbol) -> Symbol:
    return mx.sym.where(MASK, x, mx.sym.ones_like(x) * -1e9)


def interleaved(values: Symbol, heads: int) -> Symbol:
    weights = mx.sym.softmax(mx.sym.contrib.interleaved_matmul_selfatt_qk(QKV, heads=2))
    return mx.sym.contrib.interleaved_matmul_selfatt_valatt(values, weights, heads=heads)


MISSES: dict[str, Miss] = {
    "attention with dropout over axes": (
        lambda: dot(weights=lambda x: mx.sym.Dropout(x, axes=(1,))), "attention with dropout of its weights: Dropout"
    ),
    "attention with dropout of all": (
        lambda: dot(weights=lambda x: mx.sym.Dropout(x, p=1)), "attention with dropout of its weights: p is 1.0"
    ),
    "attention with a temperature and a mask": (
        lambda: dot(scores=biased, temperature=2.0), "attention with a temperature, and a mask"
    ),
    "attention with a scaled mask": (
        lambda: dot(scores=lambda x: biased(x) * 2), "attention with a mask that is scaled"
    ),
    "attention with several masks": (
        lambda: dot(scores=lambda x: biased(selected(x))), "attention with several masks, of which one selects scores"
    ),
    "attention with scores from an array": (
        lambda: dot(scores=lambda x: mx.sym.where(var("mask"), x, var("other"))),
        "attention whose scores are selected from arrays",
    ),
    "attention multiplied by another mask": (
        lambda: dot(scores=selected, weights=lambda x: x * var("other")),
        "attention whose weights are multiplied by something else than their mask",
    ),
    "attention multiplied by a trained mask": (
        lambda: dot(scores=selected, weights=lambda x: x * MASK), "attention with a mask that is trained"
    ),
    "attention by two kinds of products": (
        lambda: mx.sym.batch_dot(mx.sym.softmax(mx.sym.linalg.gemm2(var("q"), var("k"), transpose_b=True)), var("v")),
        "attention with products of two kinds",
    ),
    "interleaved attention to other values": (
        lambda: interleaved(var("other"), 2), "attention whose values lie in another array than its keys"
    ),
    "interleaved attention in other heads": (
        lambda: interleaved(QKV, 3), "attention whose values lie in another array than its keys, or in other heads"
    ),
    "attention in another type": (lambda: dot(dtype="float64"), "attention whose softmax changes the type"),
    "attention whose weights are read": (
        lambda: both(dot()), "'softmax', inside of the attention"
    ),
    "attention with a trained bias": (
        lambda: dot(scores=lambda x: mx.sym.broadcast_add(x, var("bias"))), "attention with a bias that is trained"
    ),
    "attention with a mask and a bias": (
        lambda: dot(scores=lambda x: biased(masked(x))), "attention with a mask and a bias"
    ),
    "attention with a mask of queries": (
        lambda: dot(scores=lambda x: masked(x, axis=1)),
        "attention with a mask along another axis than that of the keys",
    ),
    "attention with a mask that is none": (
        lambda: dot(scores=lambda x: masked(x, value=-1)), "attention whose mask does not rule keys out"
    ),
    "attention whose scores are read": (
        lambda: dot(seen=True), "'product', inside of the attention, is read from outside"
    ),
}  # fmt: skip


def softmax_over_queries() -> Symbol:
    return dot(axis=1)


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize(
    "build",
    [
        dot,
        lambda: dot(scores=masked),
        lambda: dot(scores=biased),
        lambda: dot(weights=dropped),
        lambda: interleaved(QKV, 2),
    ],
)
def test_dot_attention_in_every_form_is_found(build: Callable[[], Symbol]) -> None:
    assert_found(build, ATTENTION.name)


def softmax_over_queries_of_heads() -> Symbol:
    scores = mx.sym.reshape(mx.sym.batch_dot(var("q"), var("k"), transpose_b=True), shape=(-4, -1, 2, 0, 0))
    weights = mx.sym.reshape(mx.sym.softmax(scores, axis=2), shape=(-3, 0, 0))
    return mx.sym.batch_dot(weights, var("values"))


@pytest.mark.parametrize("build", [softmax_over_queries, softmax_over_queries_of_heads])
def test_another_structure_is_not_found(build: Callable[[], Symbol]) -> None:
    assert_nothing(build)
