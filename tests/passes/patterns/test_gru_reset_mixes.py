"""Mixes of two arrays by a gate: every way to write them, and what is none."""

from __future__ import annotations

from itertools import chain
from typing import Callable

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry
from echo.passes.patterns.graph_view import View
from echo.passes.patterns.gru_reset import steps, sums
from tests.passes.patterns.near_misses import Symbol, var

Form = Callable[[Symbol, Symbol, Symbol], Symbol]
SUMS: dict[str, Form] = {
    "the gate first": lambda z, a, b: z * a + (1 - z) * b,
    "the gate last": lambda z, a, b: b * (1 - z) + a * z,
    "ones": lambda z, a, b: z * a + (mx.sym.ones_like(z) - z) * b,
    "broadcast": lambda z, a, b: mx.sym.broadcast_add(mx.sym.broadcast_mul(z, a), mx.sym.broadcast_mul(1 - z, b)),
}
STEPS: dict[str, Form] = {
    "the state first": lambda z, a, b: b + z * (a - b),
    "the step first": lambda z, a, b: (a - b) * z + b,
    "broadcast": lambda z, a, b: mx.sym.broadcast_add(b, mx.sym.broadcast_mul(z, mx.sym.broadcast_sub(a, b))),
}
NONE: dict[str, Form] = {
    "two less the gate": lambda z, a, b: z * a + (2 - z) * b,
    "one less another gate": lambda z, a, b: z * a + (1 - mx.sym.exp(z)) * b,
    "a step away": lambda z, a, b: b + z * (b - a),
    "a step from another array": lambda z, a, b: z + z * (a - b),
    "a sum of one product": lambda z, a, b: z * a + b,
    "a difference": lambda z, a, b: z * a - (1 - z) * b,
}


def found(form: Form) -> list[tuple[str, ...]]:
    """The names of the gate, of what it weighs, and of the rest, in each way to read the symbol."""
    with mx.name.NameManager():
        view = View(graph_of(form(var("z"), var("a"), var("b"))))
    (head,) = view.graph.heads
    mixes = list(chain(sums(view, head), steps(view, head)))
    inner = {number for number, node in enumerate(view.graph.nodes) if not node.is_variable}
    assert all(mix.nodes == inner for mix in mixes)
    return [tuple(view.node(entry).name for entry in (mix.gate, mix.weighed, mix.rest)) for mix in mixes]


@pytest.mark.parametrize("form", [*SUMS.values(), *STEPS.values()], ids=[*SUMS, *(f"step: {name}" for name in STEPS)])
def test_mix_in_every_form_is_read(form: Form) -> None:
    assert found(form) == [("z", "a", "b")]


@pytest.mark.parametrize("name", NONE)
def test_lookalike_of_a_mix_is_not_found(name: str) -> None:
    assert not found(NONE[name])


def test_a_variable_is_none() -> None:
    view = View(graph_of(var("x")))
    assert not list(chain(sums(view, Entry(0)), steps(view, Entry(0))))
