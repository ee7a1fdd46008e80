"""Graphs that look like those that are fused, but compute something else, train as in MXNet."""

from __future__ import annotations

from collections.abc import Callable

import mxnet as mx
import numpy as np
import pytest

import echo
from tests.training import assert_alive, assert_close, bind, random_arrays, train

S = mx.sym
Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")
T, K = 33, 41
ATTENDED = {"q": (8, T, 7), "k": (8, K, 7), "v": (8, K, 5)}
OF_SIX = {"q": (6, T, 7), "k": (6, K, 7), "v": (6, K, 5)}


def scores() -> Symbol:
    return S.batch_dot(S.var("q"), S.var("k"), transpose_b=True)


def over_queries() -> Symbol:
    """The softmax of scores of five axes runs over the fourth."""
    weights = S.softmax(S.reshape(scores(), shape=(2, 2, 2, T, K)), axis=3)
    return S.batch_dot(S.reshape(weights, shape=(8, T, K)), S.var("v"))


def two_splits() -> Symbol:
    """Two masks, each of which splits the first axis in its own way."""
    one = S.broadcast_add(S.reshape(scores(), shape=(3, 2, T, K)), S.BlockGrad(S.var("m1")))
    both = S.broadcast_add(S.reshape(S.reshape(one, shape=(6, T, K)), shape=(2, 3, T, K)), S.BlockGrad(S.var("m2")))
    return S.batch_dot(S.reshape(S.softmax(both), shape=(6, T, K)), S.var("v"))


def weighted_sum(dtype: str) -> Symbol:
    weighted = S.softmax(S.var("w"), axis=1).as_np_ndarray() * S.var("v").as_np_ndarray()
    return S.np.sum(weighted, axis=1, dtype=dtype).as_nd_ndarray()


def active() -> Symbol:
    return S.tanh(S.broadcast_add(S.var("k"), S.expand_dims(S.var("q"), axis=1)))


def mlp_scores(dtype: str) -> Symbol:
    weighted = active().as_np_ndarray() * S.var("u").as_np_ndarray()
    return S.np.sum(weighted, axis=2, dtype=dtype).as_nd_ndarray()


def along_time() -> Symbol:
    """The vector goes along time, which has as many steps as there are features."""
    return S.sum(S.broadcast_mul(active(), S.var("u")), axis=2)


def wide_ones() -> Symbol:
    """One minus the gate has another axis: the ones give it."""
    x, s = (S.SliceChannel(S.var(name), num_outputs=3, axis=1) for name in "xs")
    gate, new = S.sigmoid(x[1] + s[1]), S.tanh(x[2] + S.sigmoid(x[0] + s[0]) * s[2])
    return S.broadcast_add(S.broadcast_mul(S.broadcast_sub(S.ones((3, 8, 128)), gate), new), gate * S.var("h"))


def ignoring(label: float) -> Symbol:
    layer = S.FullyConnected(S.var("x"), num_hidden=600, name="fc")
    return S.SoftmaxOutput(layer, S.var("label"), use_ignore=True, ignore_label=label)


GRAPHS: dict[str, tuple[Callable[[], Symbol], dict[str, tuple[int, ...]]]] = {
    "softmax over queries": (over_queries, ATTENDED),
    "two masks, two splits": (two_splits, {**OF_SIX, "m1": (3, 1, 1, K), "m2": (1, 3, 1, K)}),
    "a sum in float64": (lambda: weighted_sum("float64"), {"w": (4, 130, 1), "v": (4, 130, 60)}),
    "a sum in float16": (lambda: weighted_sum("float16"), {"w": (4, 130, 1), "v": (4, 130, 60)}),
    "scores in float64": (lambda: mlp_scores("float64"), {"k": (4, 30, 16), "q": (4, 16), "u": (1, 1, 16)}),
    "a vector along time": (along_time, {"k": (4, 16, 16), "q": (4, 16), "u": (1, 16, 1)}),
    "ones with another axis": (wide_ones, {"x": (8, 384), "s": (8, 384), "h": (8, 128)}),
    "a label between two": (lambda: ignoring(0.0), {"x": (512, 9), "label": (512,)}),
    "an ignored label between two": (lambda: ignoring(0.5), {"x": (512, 9), "label": (512,)}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_only_looks_alike_trains_as_in_mxnet(name: str) -> None:
    build, shapes = GRAPHS[name]
    values = random_arrays(build(), shapes, limits={"label": 3})
    if name == "a label between two":
        values["label"] += np.float32(0.7)
    wanted = {argument: "null" if argument == "label" else "write" for argument in values}
    expected = train(bind(build(), values, wanted), steps=1)
    assert_alive(expected)
    assert_close(train(bind(echo.optimize(build(), strict=True), values, wanted), steps=1), expected)


@pytest.mark.parametrize("zero", ["scale", "temperature", "fill"])
def test_a_division_by_0_costs_no_other_fusion(zero: str) -> None:
    temperature = 0.0 if zero == "temperature" else None
    inner = scores() / 0.0 if zero == "scale" else scores()
    if zero == "fill":
        inner = S.where(S.var("m"), inner, -1 * S.ones_like(inner) / 0.0)
    more = {"m": (4, 133, 141)} if zero == "fill" else {}
    other = S.batch_dot(S.softmax(S.batch_dot(S.var("k"), S.var("q"), transpose_b=True) * 2), S.var("q"))
    both = S.Group([S.batch_dot(S.softmax(inner, temperature=temperature), S.var("v")), other])
    plan = echo.plan(both, strict=True, grad_req="write", q=(4, 133, 7), k=(4, 141, 7), v=(4, 141, 5), **more)
    assert not plan.failed
