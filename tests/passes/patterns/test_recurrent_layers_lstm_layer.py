"""LSTM layers: whole ones are found, and give way to cells where something inside is read."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.passes.patterns.recurrent_layers import LSTM_LAYER
from tests.passes.patterns.near_misses import H, T, found_in, var


@pytest.mark.parametrize(("inner", "cells"), [("cell_t1_i2h_output", T), ("cell_t1_i_output", T - 1)])
def test_a_layer_of_which_an_inner_map_is_read_is_cells(inner: str, cells: int) -> None:
    outputs, states = mx.rnn.LSTMCell(H, prefix="cell_").unroll(T, var("x"), layout="NTC")
    whole = mx.sym.Group([*outputs, *states])
    assert found_in(lambda: whole)[0] == [LSTM_LAYER.name]
    found, missed = found_in(lambda: mx.sym.Group([whole, whole.get_internals()[inner]]))
    assert found == ["lstm_cell"] * cells
    assert any(reason.endswith("is read from outside") for reason in missed)
