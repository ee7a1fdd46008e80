"""LSTM cells: which are found, and why others are not."""

from __future__ import annotations

from typing import Callable, Sequence

import mxnet as mx
import pytest

from echo.passes.patterns.recurrent_cells import LSTM_CELL
from tests.passes.patterns.near_misses import (
    H,
    Miss,
    Symbol,
    T,
    assert_found,
    assert_missed,
    assert_nothing,
    dense,
    dropped,
    found_in,
    normalized,
    same,
    sigmoid,
    tanh,
    var,
)


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


MISSES: dict[str, Miss] = {
    "one part read as two gates": (
        lambda: lstm(order=(0, 2, 2, 3)),
        "an LSTM cell whose gates are not the quarters of one array: input, forget, transform, output are the parts "
        "[0, 2, 2, 3] of [4, 4, 4, 4]",
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


def state_normalized_over_the_batch() -> Symbol:
    return lstm(state=lambda x: mx.sym.broadcast_mul(mx.sym.softmax(x, axis=0), var("scale")))


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize(
    "build", [lstm, lambda: lstm(state=normalized), lambda: lstm((0, 2, 1, 3)), lambda: lstm((3, 1, 2, 0), normalized)]
)
def test_lstm_cell_with_gates_in_any_order_is_found(build: Callable[[], Symbol]) -> None:
    assert_found(build, LSTM_CELL.name)


def test_another_structure_is_not_found() -> None:
    assert_nothing(state_normalized_over_the_batch)


def test_a_layer_that_is_fed_its_own_output_is_cells() -> None:
    cell = mx.rnn.LSTMCell(H, prefix="cell_")
    hidden, states = var("start"), cell.begin_state()
    for _ in range(T):
        hidden, states = cell(tanh(hidden), states)
    assert found_in(lambda: hidden)[0] == [LSTM_CELL.name] * T
