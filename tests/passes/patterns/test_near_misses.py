"""What nearly is a pattern, and why no fused operator takes its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Sequence

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry
from echo.passes.patterns.apply import find

H, T = 4, 3
Symbol = mx.sym.Symbol
sigmoid, tanh = mx.sym.sigmoid, mx.sym.tanh


def var(name: str) -> Symbol:
    return mx.sym.var(name)


def dense(x: Symbol, size: int, name: str, **more: Any) -> Symbol:
    return mx.sym.FullyConnected(x, num_hidden=size, name=name, **more)


def same(x: Symbol) -> Symbol:
    return x


# LSTM cells --------------------------------------------------------------------------------------------------------


def lstm(
    order: Sequence[int] = (0, 1, 2, 3),
    state: Callable[[Symbol], Symbol] = same,
    new: Callable[[Symbol], Symbol] = same,
    gate: Callable[[Symbol], Symbol] = same,
    active: Callable[[Symbol], Symbol] = tanh,
    axis: int = 1,
    parts: Callable[[], Sequence[Symbol]] | None = None,
    seen: Callable[[dict[str, Symbol]], Sequence[Symbol]] = lambda inner: (),
) -> Symbol:
    """A cell by hand: ``order`` says which part of the product each of the gates i, f, g and o is."""
    product = dense(var("x"), 4 * H, "xw") + dense(var("h"), 4 * H, "hw")
    given = parts() if parts else mx.sym.SliceChannel(product, num_outputs=4, axis=axis, name="parts")
    i, f, g, o = (gate(given[number]) for number in order)
    kept = sigmoid(f, name="forget") * var("c")
    c = kept + sigmoid(i, name="input") * new(active(g))
    h = sigmoid(o, name="output") * tanh(state(c), name="squashed")
    return mx.sym.Group([h, c, *seen({"kept": kept, "product": product})])


def of_several_arrays() -> list[Symbol]:
    halves = [mx.sym.SliceChannel(dense(var(name), 4 * H, f"{name}w"), num_outputs=4) for name in ("x", "h")]
    return [halves[0][0], halves[0][1], halves[1][2], halves[1][3]]


def products_of_their_own() -> list[Symbol]:
    return [dense(var("x"), H, f"gate{number}") for number in range(4)]


def normalized(x: Symbol) -> Symbol:
    return mx.sym.LayerNorm(x, name="norm")


def dropped(x: Symbol) -> Symbol:
    return mx.sym.Dropout(x, p=0.3, name="drop")


LSTM: dict[str, tuple[Callable[[], Symbol], str]] = {
    "another order of gates": (
        lambda: lstm(order=(0, 2, 1, 3)),
        "an LSTM cell with its gates in another order: input, forget, transform, output are the parts [0, 2, 1, 3]",
    ),
    "gates from several arrays": (
        lambda: lstm(parts=of_several_arrays), "an LSTM cell whose gates come from several arrays"
    ),
    "gates that are products of their own": (
        lambda: lstm(parts=products_of_their_own),
        "an LSTM cell whose input gate is no quarter of one product: FullyConnected ('gate0')",
    ),
    "gates along the batch": (
        lambda: lstm(axis=0),
        "an LSTM cell whose input gate is no quarter of one product: SliceChannel ('parts')",
    ),
    "recurrent dropout": (
        lambda: lstm(new=dropped), "an LSTM cell with recurrent dropout, which needs a mask inside of the cell"
    ),
    "layer norm of each gate": (
        lambda: lstm(gate=normalized), "an LSTM cell with layer norm of each gate ('norm')"
    ),
    "another activation": (
        lambda: lstm(active=mx.sym.softsign), "an LSTM cell with other activations than sigmoid and tanh"
    ),
    "an inner node that the user reads": (
        lambda: lstm(seen=lambda inner: [inner["kept"]]), "'_mul0', inside of the cell, is read from outside"
    ),
    "an inner node that another one reads": (
        lambda: lstm(seen=lambda inner: [mx.sym.exp(inner["kept"])]),
        "'_mul0', inside of the cell, is read from outside",
    ),
}  # fmt: skip


# GRU cells ---------------------------------------------------------------------------------------------------------


def gru(order: Sequence[int] = (0, 1, 2), one: float = 1.0, after: bool = True, split: bool = True) -> Symbol:
    """A cell by hand: ``after`` resets the product of the state, as cuDNN does, and not the state itself."""
    x, s = dense(var("x"), 3 * H, "xw"), dense(var("h"), 3 * H, "hw")
    xs = mx.sym.SliceChannel(x, num_outputs=3, name="of_x") if split else [dense(var("x"), H, f"x{k}") for k in "rzn"]
    states = mx.sym.SliceChannel(s, num_outputs=3, name="of_h")
    x_r, x_z, x_n = (xs[number] for number in order)
    s_r, s_z, s_n = (states[number] for number in order)
    reset, update = sigmoid(x_r + s_r, name="reset"), sigmoid(x_z + s_z, name="update")
    new = tanh(x_n + (reset * s_n if after else dense(reset * var("h"), H, "again")), name="new")
    return (one - update) * new + update * var("h")


GRU: dict[str, tuple[Callable[[], Symbol], str]] = {
    "another order of gates": (lambda: gru(order=(1, 0, 2)), "a GRU cell with its gates in another order"),
    "a reset of the state itself": (
        lambda: gru(after=False), "a GRU cell whose reset gate is not applied to the product of the state"
    ),
    "gates that are products of their own": (
        lambda: gru(split=False), "a GRU cell whose gates are no thirds of one product"
    ),
}  # fmt: skip


# Attention, layers, outputs ----------------------------------------------------------------------------------------


def score(axis: int = -1, seen: bool = False) -> Symbol:
    mixed = mx.sym.broadcast_add(var("keys"), mx.sym.expand_dims(var("query"), axis=1), name="mixed")
    norm = mx.sym.LayerNorm(mixed, axis=axis, name="norm")
    found = mx.sym.FullyConnected(tanh(norm), var("v"), num_hidden=1, no_bias=True, flatten=False, name="score")
    return mx.sym.Group([found, mixed]) if seen else found


def context() -> Symbol:
    weighted = mx.sym.broadcast_mul(var("values"), mx.sym.softmax(var("scores"), axis=1), name="weighted")
    return mx.sym.Group([mx.sym.sum(weighted, axis=1), weighted])


def rnn(mode: str = "lstm", layers: int = 1, **more: Any) -> Symbol:
    states = [var("h"), *([var("c")] if mode == "lstm" else [])]
    return mx.sym.RNN(var("x"), var("w"), *states, mode=mode, num_layers=layers, state_size=H, name="rnn", **more)


def softmax(seen: bool = False, **more: Any) -> Symbol:
    scores = dense(var("x"), 9, "scores")
    found = mx.sym.SoftmaxOutput(scores, var("label"), name="softmax", **more)
    return mx.sym.Group([found, scores]) if seen else found


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


def layer_norm(**more: Any) -> Symbol:
    found = mx.sym.LayerNorm(var("x"), name="norm", **more)
    return mx.sym.Group(list(found)) if len(found) > 1 else found


def rectified(use: Callable[[Symbol], Symbol] = mx.sym.sum) -> Symbol:
    return use(mx.sym.Activation(var("x"), act_type="relu", name="positive"))


def biased_activation(seen: bool = False, kind: str = "softrelu", first: bool = False) -> Symbol:
    operands = mx.sym.exp(var("x")), var("bias")
    total = mx.sym.broadcast_add(*(operands[::-1] if first else operands), name="total")
    found = mx.sym.Activation(total, act_type=kind)
    return mx.sym.Group([found, total]) if seen else found


def pooled(x: Symbol) -> Symbol:
    return mx.sym.Pooling(x, kernel=(2, 2), pool_type="max", name="pool")


OTHERS: dict[str, tuple[Callable[[], Symbol], str]] = {
    "scores normalized over time": (
        lambda: score(axis=1), "attention scores with a layer norm along another axis than the last"
    ),
    "scores whose sum is read": (
        lambda: score(seen=True), "'mixed', inside of the attention scores, is read from outside"
    ),
    "a context whose terms are read": (context, "the weighted values 'weighted' are read by others than the sum"),
    "RNN of GRU layers": (lambda: rnn("gru"), "an RNN operator of mode gru: only LSTM layers are fused"),
    "RNN with dropout": (lambda: rnn(layers=2, p=0.2), "an RNN operator with dropout between its layers"),
    "RNN with a projection": (lambda: rnn(projection_size=2), "an RNN operator with projection_size"),
    "RNN with a clipped state": (
        lambda: rnn(lstm_state_clip_min=-1, lstm_state_clip_max=1), "an RNN operator with lstm_state_clip_min"
    ),
    "RNN both ways, packed": (
        lambda: rnn(bidirectional=True), "a bidirectional RNN operator with packed parameters"
    ),
    "attention with dropout": (lambda: dot(weights=dropped), "attention with dropout of its weights"),
    "attention with a temperature": (lambda: dot(temperature=2.0), "attention with a temperature"),
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
    "layer norm over the batch": (
        lambda: layer_norm(axis=0), "a layer norm over axis 0: expected the last one, -1"
    ),
    "layer norm whose mean is read": (
        lambda: layer_norm(output_mean_var=True), "a layer norm whose mean and variance are read"
    ),
    "dropout of a begin state": (
        lambda: mx.sym.Dropout(mx.sym.tanh(mx.sym.zeros((0, H)), name="start")) + var("x"),
        "the shape of 'start' is known too late",
    ),
    "dropout over axes": (
        lambda: mx.sym.Dropout(var("x"), axes=(1,)), "Dropout over axes has a mask of another shape"
    ),
    "dropout of nothing": (lambda: mx.sym.Dropout(var("x"), p=0), "Dropout with p=0 makes no mask"),
    "dropout of everything": (lambda: mx.sym.Dropout(var("x"), p=1), "a Dropout that keeps nothing"),
    "a rectified array that is pooled": (
        lambda: rectified(pooled), "its output is stashed anyway: read by the gradient of 'pool'"
    ),
    "a rectified array that is multiplied in another form": (
        lambda: rectified(lambda x: dense(dropped(mx.sym.Reshape(x, shape=(-1, 4))), H, "next")),
        "its output is stashed anyway: read by the gradient of 'next'",
    ),
    "a rectified array that the user reads": (
        lambda: rectified(same), "its output is stashed anyway: read by the user"
    ),
    "a bias within a product": (
        lambda: mx.sym.tanh(dense(var("x"), H, "layer")),
        "the bias of 'layer' is added within its product, where it costs next to nothing",
    ),
    "a bias that comes first": (
        lambda: biased_activation(first=True), "what may be a bias comes first in 'total': the order of arguments"
    ),
    "a sum with a bias that is read": (
        lambda: biased_activation(seen=True),
        "the sum 'total' with a bias is read by others than the activation",
    ),
    "softmax over channels": (lambda: softmax(multi_output=True), "a softmax output with multi_output"),
    "softmax with a head gradient": (lambda: softmax(out_grad=True), "a softmax output with out_grad"),
    "softmax whose scores are read": (
        lambda: softmax(seen=True), "the scores 'scores' are read by others than the softmax"
    ),
}  # fmt: skip
MISSES = {f"{kind}: {name}": case for kind, cases in (("LSTM", LSTM), ("GRU", GRU), ("other", OTHERS))
          for name, case in cases.items()}  # fmt: skip


def found_in(build: Callable[[], Symbol]) -> tuple[list[str], list[str]]:
    with mx.name.NameManager():
        found, missed = find(graph_of(build()), "cpu")
    return [fusion.pattern for fusion in found], [miss.reason for miss in missed]


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    build, reason = MISSES[name]
    found, missed = found_in(build)
    assert set(found) <= {"layer_norm", "dropout"}, "which are fused by themselves"
    assert any(each.startswith(reason) for each in missed), missed


def test_a_mask_that_is_read_stays() -> None:
    """MXNet hides it, a graph from a file need not."""
    graph = graph_of(dropped(var("x")))
    _, missed = find(replace(graph, heads=(*graph.heads, Entry(1, 1))), "cpu")
    assert [miss.reason for miss in missed] == ["a Dropout whose mask is read"]


@pytest.mark.parametrize(
    ("build", "pattern"),
    [
        (lstm, "lstm_cell"),
        (lambda: lstm(state=normalized), "lstm_cell"),
        (gru, "gru_cell"),
        (score, "mlp_score"),
        (rnn, "rnn"),
        (softmax, "softmax_output"),
        (dot, "attention"),
        (lambda: dot(scores=masked), "attention"),
        (lambda: dot(scores=biased), "attention"),
        (layer_norm, "layer_norm"),
        (lambda: mx.sym.SequenceReverse(var("x")), "sequence_reverse"),
        (lambda: dropped(var("x")), "dropout"),
        (lambda: dropped(mx.sym.elemwise_add(mx.sym.zeros((0, H)), var("x"))), "dropout"),
        (lambda: dropped(mx.sym.zeros((2, H))), "dropout"),
        (rectified, "relu"),
        (biased_activation, "bias_act"),
        (lambda: biased_activation(kind="tanh"), "bias_act"),
        (lambda: rectified(lambda x: mx.sym.Reshape(x, shape=(-1, 4)) + var("y")), "relu"),
    ],
)
def test_without_the_difference_it_is_found(build: Callable[[], Symbol], pattern: str) -> None:
    assert found_in(build) == ([pattern], [])


# Nothing alike, so nothing is said ---------------------------------------------------------------------------------


def biased_score() -> Symbol:
    mixed = mx.sym.broadcast_add(var("keys"), mx.sym.expand_dims(var("query"), axis=1))
    return mx.sym.FullyConnected(tanh(mixed), num_hidden=1, flatten=False, name="score")


def flat_score() -> Symbol:
    mixed = mx.sym.broadcast_add(var("keys"), mx.sym.expand_dims(var("query"), axis=1))
    return mx.sym.FullyConnected(tanh(mixed), num_hidden=1, no_bias=True, name="score")


def sum_over_batch() -> Symbol:
    return mx.sym.sum(mx.sym.broadcast_mul(var("values"), mx.sym.softmax(var("scores"), axis=1)), axis=0)


def one_and_a_half() -> Symbol:
    return gru(one=1.5)


def state_normalized_over_the_batch() -> Symbol:
    return lstm(state=lambda x: mx.sym.broadcast_mul(mx.sym.softmax(x, axis=0), var("scale")))


def softmax_over_queries() -> Symbol:
    return dot(axis=1)


def reversed_batch() -> Symbol:
    return mx.sym.reverse(var("x"), axis=1)


OTHER = [biased_score, flat_score, sum_over_batch, one_and_a_half, state_normalized_over_the_batch,
         softmax_over_queries, reversed_batch]  # fmt: skip


@pytest.mark.parametrize("build", OTHER, ids=lambda build: build.__name__)
def test_other_structures_are_not_found(build: Callable[[], Symbol]) -> None:
    found, missed = found_in(build)
    assert not found
    assert all("may be a bias" in reason for reason in missed)


def test_a_layer_that_is_fed_its_own_output_is_cells() -> None:
    cell = mx.rnn.LSTMCell(H, prefix="cell_")
    hidden, states = var("start"), cell.begin_state()
    for _ in range(T):
        hidden, states = cell(tanh(hidden), states)
    assert found_in(lambda: hidden)[0] == ["lstm_cell"] * T


@pytest.mark.parametrize(("inner", "cells"), [("cell_t1_i2h_output", T), ("cell_t1_i_output", T - 1)])
def test_a_layer_of_which_an_inner_map_is_read_is_cells(inner: str, cells: int) -> None:
    outputs, states = mx.rnn.LSTMCell(H, prefix="cell_").unroll(T, var("x"), layout="NTC")
    whole = mx.sym.Group([*outputs, *states])
    assert found_in(lambda: whole)[0] == ["lstm_layer"]
    found, missed = found_in(lambda: mx.sym.Group([whole, whole.get_internals()[inner]]))
    assert found == ["lstm_cell"] * cells
    assert any(reason.endswith("is read from outside") for reason in missed)
