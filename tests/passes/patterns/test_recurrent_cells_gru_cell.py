"""GRU cells: which are found, and why others are not."""

from __future__ import annotations

from itertools import permutations
from typing import Sequence

import mxnet as mx
import pytest

from echo.passes.patterns.recurrent_cells import GRU_CELL
from tests.passes.patterns.near_misses import (
    H,
    Miss,
    Symbol,
    assert_found,
    assert_missed,
    assert_nothing,
    dense,
    sigmoid,
    tanh,
    var,
)


def gru(
    order: Sequence[int] = (0, 1, 2), of_state: Sequence[int] = (0, 1, 2), one: float = 1.0, after: bool = True,
    split: bool = True,
) -> Symbol:  # fmt: skip
    """A cell by hand: ``after`` resets the product of the state, as cuDNN does, and not the state itself."""
    x, s = dense(var("x"), 3 * H, "xw"), dense(var("h"), 3 * H, "hw")
    xs = mx.sym.SliceChannel(x, num_outputs=3, name="of_x") if split else [dense(var("x"), H, f"x{k}") for k in "rzn"]
    states = mx.sym.SliceChannel(s, num_outputs=3, name="of_h")
    x_r, x_z, x_n = (xs[number] for number in order)
    s_r, s_z, s_n = (states[number] for number in of_state)
    reset, update = sigmoid(x_r + s_r, name="reset"), sigmoid(x_z + s_z, name="update")
    new = tanh(x_n + (reset * s_n if after else dense(reset * var("h"), H, "again")), name="new")
    return (one - update) * new + update * var("h")


MISSES: dict[str, Miss] = {
    "another order in the product of the state": (
        lambda: gru(of_state=(1, 0, 2)), "a GRU cell with gates in two orders, or from several arrays: 'of_x'"
    ),
    "one part read as two gates": (
        lambda: gru((0, 0, 2), (0, 0, 2)),
        "a GRU cell whose gates are not the thirds of one product: reset, update, candidate are the parts [0, 0, 2]",
    ),
    "a reset of the state itself": (
        lambda: gru(after=False), "a GRU cell whose reset gate is not applied to the product of the state"
    ),
    "gates that are products of their own": (
        lambda: gru(split=False), "a GRU cell whose gates are no thirds of one product"
    ),
}  # fmt: skip


def one_and_a_half() -> Symbol:
    return gru(one=1.5)


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_gru_cell_with_gates_in_any_order_is_found(order: Sequence[int]) -> None:
    assert_found(lambda: gru(order, order), GRU_CELL.name)


def test_another_structure_is_not_found() -> None:
    assert_nothing(one_and_a_half)
