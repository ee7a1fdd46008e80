"""GRU layers: whole ones are found, and give way to cells where something inside is read."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.passes.patterns.recurrent_layers import GRU_LAYER
from tests.passes.patterns.near_misses import H, T, found_in, var


@pytest.mark.parametrize(("inner", "cells"), [("cell_t1__i2h_output", T), ("cell_t1__z_act_output", T - 1)])
def test_a_layer_of_which_an_inner_map_is_read_is_cells(inner: str, cells: int) -> None:
    outputs, states = mx.rnn.GRUCell(H, prefix="cell_").unroll(T, var("x"), layout="NTC")
    whole = mx.sym.Group([*outputs, *states])
    assert found_in(lambda: whole)[0] == [GRU_LAYER.name]
    found, missed = found_in(lambda: mx.sym.Group([whole, whole.get_internals()[inner]]))
    assert found == ["gru_cell"] * cells
    assert any(reason.endswith("is read from outside") for reason in missed)


def test_another_state_next_to_the_gates_is_no_layer() -> None:
    """The new state mixes something else than what its product reads."""
    weights, h = [var(name) for name in ("wi", "bi", "wh", "bh")], var("h0")
    for step in range(T):
        x = mx.sym.FullyConnected(var(f"x{step}"), *weights[:2], num_hidden=3 * H)
        s = mx.sym.FullyConnected(h, *weights[2:], num_hidden=3 * H)
        (x_r, x_z, x_n), (s_r, s_z, s_n) = (mx.sym.SliceChannel(each, num_outputs=3) for each in (x, s))
        z = mx.sym.sigmoid(x_z + s_z)
        n = mx.sym.tanh(x_n + mx.sym.sigmoid(x_r + s_r) * s_n)
        h = (1 - z) * n + z * var(f"other{step}")
    assert found_in(lambda: h)[0] == ["gru_cell"] * T
