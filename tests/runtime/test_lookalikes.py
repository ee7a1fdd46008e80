"""Graphs that look like those that are fused, but compute something else, train as in MXNet."""

from __future__ import annotations

from collections.abc import Callable

import mxnet as mx
import numpy as np
import pytest

import echo
from tests.support.training import assert_alive, assert_close, bind, random_arrays, train

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


def one_for_all() -> Symbol:
    """A GRU cell of one feature whose input, state and products are all the same array."""
    x = S.var("x")
    reset, update, new = S.SliceChannel(x, num_outputs=3, axis=1)
    gate = S.sigmoid(S.broadcast_add(update, update))
    reset = S.broadcast_mul(S.sigmoid(S.broadcast_add(reset, reset)), new)
    candidate = S.tanh(S.broadcast_add(new, reset))
    return S.broadcast_add(S.broadcast_mul(1 - gate, candidate), S.broadcast_mul(gate, x))


def ruled_out(value: float) -> Symbol:
    """Attention in which keys beyond a length, which no gradient needs, are masked."""
    masked = S.SequenceMask(S.transpose(scores(), axes=(2, 0, 1)), S.BlockGrad(S.var("lengths")),
                            use_sequence_length=True, value=value)  # fmt: skip
    return S.batch_dot(S.softmax(S.transpose(masked, axes=(1, 2, 0))), S.var("v"))


GRAPHS: dict[str, tuple[Callable[[], Symbol], dict[str, tuple[int, ...]]]] = {
    "softmax over queries": (over_queries, ATTENDED),
    "two masks, two splits": (two_splits, {**OF_SIX, "m1": (3, 1, 1, K), "m2": (1, 3, 1, K)}),
    "a sum in float64": (lambda: weighted_sum("float64"), {"w": (4, 130, 1), "v": (4, 130, 60)}),
    "a sum in float16": (lambda: weighted_sum("float16"), {"w": (4, 130, 1), "v": (4, 130, 60)}),
    "scores in float64": (lambda: mlp_scores("float64"), {"k": (4, 30, 16), "q": (4, 16), "u": (1, 1, 16)}),
    "a vector along time": (along_time, {"k": (4, 16, 16), "q": (4, 16), "u": (1, 16, 1)}),
    "ones with another axis": (wide_ones, {"x": (8, 384), "s": (8, 384), "h": (8, 128)}),
    "a cell of one array": (one_for_all, {"x": (300, 3)}),
    "a label between two": (lambda: ignoring(0.0), {"x": (512, 9), "label": (512,)}),
    "an ignored label between two": (lambda: ignoring(0.5), {"x": (512, 9), "label": (512,)}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_lookalike_of_a_pattern_trains_as_in_mxnet(name: str) -> None:
    build, shapes = GRAPHS[name]
    values = random_arrays(build(), shapes, limits={"label": 3})
    if name == "a label between two":
        values["label"] += np.float32(0.7)
    wanted = {argument: "null" if argument == "label" else "write" for argument in values}
    expected = train(bind(build(), values, wanted), steps=1)
    assert_alive(expected)
    assert_close(train(bind(echo.optimize(build(), strict=True), values, wanted), steps=1), expected)


@pytest.mark.parametrize("value", [-1e30, -np.inf])
def test_lengths_are_cut_to_whole_ones(value: float) -> None:
    values = random_arrays(ruled_out(value), {**ATTENDED, "lengths": (8,)})
    values["lengths"] = np.array([0, 0.5, 0.999, 1, 1.5, 2.5, 40.9, 41], np.float32)
    wanted = {name: "null" if name == "lengths" else "write" for name in values}
    expected = train(bind(ruled_out(value), values, wanted), steps=1)
    got = train(bind(echo.optimize(ruled_out(value), strict=True), values, wanted), steps=1)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6, equal_nan=True, err_msg=name)


def test_misfit_costs_no_other_fusion() -> None:
    attention = S.batch_dot(S.softmax(scores()), S.var("v"))
    shapes = {"x": (300, 3), "q": (4, 133, 7), "k": (4, 141, 7), "v": (4, 141, 5)}
    plan = echo.plan(S.Group([one_for_all(), attention]), strict=True, grad_req="write", **shapes)
    assert not plan.failed
    assert plan.fused
    assert [missed.reason for missed in plan.missed] == ["MXNet finds no shapes for the fused operator"]


@pytest.mark.parametrize("name", ["bernoulli", "gumbel", "exponential", "normal"])
def test_random_numbers_are_drawn_in_the_users_order(name: str) -> None:
    """MXNet visits the noise of the scores first; in a fused operator, that of the values would be."""

    def noise(*shape: int) -> Symbol:
        draw = S.npx.random.bernoulli if name == "bernoulli" else getattr(S.np.random, name)
        return draw(**({"prob": 0.5} if name == "bernoulli" else {}), size=shape).as_nd_ndarray()

    def build() -> Symbol:
        return S.batch_dot(S.softmax(scores() + noise(8, T, K)), S.var("v") * noise(8, K, 5))

    def trained(symbol: Symbol) -> dict[str, np.ndarray]:
        executor = bind(symbol, values, "write")
        mx.random.seed(3)
        return train(executor, steps=1)

    values = random_arrays(build(), ATTENDED)
    assert_close(trained(echo.optimize(build(), strict=True)), trained(build()))


@pytest.mark.usefixtures("free_workspaces")
@pytest.mark.parametrize("names", ["dd", "ab", ("a_echo_1", "a_echo_2")], ids=str)
@pytest.mark.parametrize("of_values", [True, False])
def test_dropouts_draw_in_the_users_order_whatever_their_names(names: tuple[str, str], of_values: bool) -> None:
    """As of one block of Gluon that is called twice. Where attention would draw before its values, it is not fused."""

    def build() -> Symbol:
        weights = S.Dropout(S.softmax(scores()), p=0.3, name=names[0])
        if of_values:
            return S.batch_dot(weights, S.Dropout(S.var("v"), p=0.4, name=names[1]))
        return S.Dropout(S.batch_dot(weights, S.var("v")), p=0.4, name=names[1])

    def trained(symbol: Symbol) -> dict[str, np.ndarray]:
        executor = bind(symbol, values, "write")
        mx.random.seed(3)
        return train(executor, steps=1)

    values = random_arrays(build(), ATTENDED)
    optimized = echo.optimize(build(), strict=True, max_overhead=None)
    assert_close(trained(optimized), trained(build()))
    patterns = [pattern for pattern, _ in optimized.plans[-1].fused]
    assert ("attention" in patterns) == (not of_values)
    assert "__echo_draw__" not in optimized.tojson()


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
