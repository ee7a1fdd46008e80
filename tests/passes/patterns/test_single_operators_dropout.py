"""Dropout: which is found, and why other is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import PREFIX, Entry, Setting
from echo.passes.patterns.apply import find
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.patterns.single_operators import DROPOUT
from tests.passes.patterns.near_misses import H, Miss, Symbol, assert_found, assert_missed, dropped, var

MISSES: dict[str, Miss] = {
    "dropout of a begin state": (
        lambda: mx.sym.Dropout(mx.sym.tanh(mx.sym.zeros((0, H)), name="start")) + var("x"),
        "the shape of 'start' is known too late",
    ),
    "dropout over axes": (
        lambda: mx.sym.Dropout(var("x"), axes=(1,)), "Dropout over axes has a mask of another shape"
    ),
    "dropout of nothing": (lambda: mx.sym.Dropout(var("x"), p=0), "Dropout with p=0 makes no mask"),
    "dropout of everything": (lambda: mx.sym.Dropout(var("x"), p=1), "a Dropout that keeps nothing"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize(
    "build",
    [
        lambda: dropped(var("x")),
        lambda: dropped(mx.sym.elemwise_add(mx.sym.zeros((0, H)), var("x"))),
        lambda: dropped(mx.sym.zeros((2, H))),
    ],
)
def test_dropout_in_every_form_is_found(build: Callable[[], Symbol]) -> None:
    assert_found(build, DROPOUT.name)


def test_a_mask_that_is_read_stays() -> None:
    """MXNet hides it, a graph from a file need not."""
    graph = graph_of(dropped(var("x")))
    _, missed = find(replace(graph, heads=(*graph.heads, Entry(1, 1))))
    assert [miss.reason for miss in missed] == ["a Dropout whose mask is read"]


@pytest.mark.parametrize(
    ("draws", "p", "operator"), [(True, 0.25, "draw_mask"), (True, 1e-4, "pack_mask"), (False, 0.25, "pack_mask")]
)
def test_numbers_are_drawn_by_the_kernel_where_it_draws_those_of_mxnet(draws: bool, p: float, operator: str) -> None:
    """Where next to nothing is dropped, float16 has no other number for an element that is kept than for one alone."""
    view = View(graph_of(mx.sym.Dropout(var("x"), p=p)), setting=Setting(draws=draws))
    (number,) = (number for number, node in enumerate(view.graph.nodes) if node.op == "Dropout")
    fusion = DROPOUT.match(view, number)
    assert isinstance(fusion, Fusion)
    nodes = {node.op: node for node in fusion.nodes}
    assert PREFIX + operator in nodes
    assert float(nodes["Dropout"].attrs["p"]) == p
    assert operator == "pack_mask" or nodes[PREFIX + operator].attrs["keep"] == "0.75"
