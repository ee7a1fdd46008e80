"""Monitors are told of the user's nodes alone, under the user's names."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from echo.plans.decisions import mark
from echo.runtime.executor import WithoutClones

GRAPH = graph_of(mx.sym.exp(mx.sym.tanh(mx.sym.var("x"), name="a_b"), name="a"))


def handle() -> Any:
    array = mx.nd.ones((2,))
    found, array.handle = array.handle, None
    return found


class Seen(WithoutClones):
    """A monitor that keeps what it passes on."""

    def __init__(self, original: Graph, bound: Graph) -> None:
        self.names: list[Any] = []
        super().__init__(original, bound, lambda *args: self.names.append(tuple(args[:-1])))

    def tell(self, *names: str) -> list[Any]:
        for name in names:
            self(name.encode(), handle())
        return [name.decode() for (name,) in self.names]


@pytest.mark.parametrize(("hook", "suffix"), [(True, "_echo"), (False, "_mirror")])
def test_clones_are_dropped(hook: bool, suffix: str) -> None:
    seen = Seen(GRAPH, mark(GRAPH, {1: [0]}, hook))
    assert seen.tell("a_b_output", f"a_b{suffix}_output", "a_output", "a_b_input0") == [
        "a_b_output", "a_output", "a_b_input0",
    ]  # fmt: skip


def test_monitor_without_a_plan_drops_no_name() -> None:
    assert Seen(GRAPH, GRAPH).tell("a_b_output", "a_b_echo_output") == ["a_b_output", "a_b_echo_output"]


def test_a_variable_is_shown_with_the_node_that_reads_it() -> None:
    """Before an input that is a variable MXNet shows the variable: it goes the way of the node."""
    seen = Seen(GRAPH, mark(GRAPH, {1: [0]}, True))
    assert seen.tell("x", "a_b_input0", "x", "a_b_echo_input0", "a_output") == ["x", "a_b_input0", "a_output"]


def test_a_muted_monitor_drops_all() -> None:
    seen = Seen(GRAPH, GRAPH)
    seen.muted = True
    assert seen.tell("a_output", "x", "a_b_input0") == []


def test_operators_are_shown_by_the_users_names() -> None:
    seen = Seen(GRAPH, GRAPH.with_attrs({1: {GRADIENT_ATTRIBUTE: "old>new:0"}}))
    seen(b"a_b_backward_data", b"new", handle())
    seen(b"a_b_output", b"tanh", handle())
    assert seen.names == [(b"a_b_backward_data", b"old"), (b"a_b_output", b"tanh")]
