"""Recurrences through a layer norm are known by their structure, wherever the names come from."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.passes.patterns.legality import normed_state

SIZE = 4
var = mx.sym.var


def unrolled(steps: int = 3, shared: bool = True, products: int = 1, normed: bool = True) -> mx.sym.Symbol:
    """A simple recurrent network: each state is the tanh of a product of the one before, perhaps normalized."""
    weights = [var(f"w{number}") for number in range(products)]
    norms = [(var(f"gamma{number}"), var(f"beta{number}")) for number in range(1 if shared else steps)]
    state = var("h")
    for step in range(steps):
        for weight in weights:
            state = mx.sym.FullyConnected(state, weight, no_bias=True, num_hidden=SIZE)
        if normed:
            norm = norms[0 if shared else step]
            state = mx.sym.LayerNorm(state, *norm, name=f"norm{step}")
        state = mx.sym.tanh(state)
    return state


def test_the_second_norm_of_a_recurrence_is_named() -> None:
    assert normed_state(graph_of(unrolled())) == "norm1"


@pytest.mark.parametrize(
    "symbol",
    [unrolled(steps=1), unrolled(shared=False), unrolled(products=2), unrolled(products=0), unrolled(normed=False)],
    ids=["one step", "norms of their own", "two products", "no product", "no norm"],
)
def test_graph_of_another_structure_is_no_normed_recurrence(symbol: mx.sym.Symbol) -> None:
    assert normed_state(graph_of(symbol)) == ""
