"""Marks go into a graph, are read from it, and are taken out again."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.training_graph import ASSIGNED
from echo.plans.decisions import Mark
from echo.plans.marks import implements, mark, marked, marks_of, outputs_of, range_text, splits_of, unmarked


@pytest.fixture(scope="module")
def graph() -> Graph:
    """data, its tanh, two slices of that, and the sum of them."""
    parts = mx.sym.SliceChannel(mx.sym.tanh(mx.sym.var("data"), name="tanh"), num_outputs=2, name="parts")
    return graph_of(mx.sym.elemwise_add(parts[0], parts[1], name="sum"))


def attrs(graph: Graph, name: str) -> list[str | None]:
    return [node.attrs.get(name) for node in graph.nodes]


def test_outputs_and_positions_are_written_beside_the_range(graph: Graph) -> None:
    found = mark(graph, {1: [0], 2: [1, 0]}, hook=True, match_range=2, splits={1: [0], 2: [3, 7]})
    assert attrs(found, PLAN_ATTRIBUTE) == [None, "0", "0,1@3,7", None]
    assert attrs(found, RANGE_ATTRIBUTE) == [None, "2", "2", None]
    assert attrs(mark(graph, {1: [0]}, hook=True), RANGE_ATTRIBUTE) == [None] * 4


def test_a_range_alone_is_written_into_every_operator(graph: Graph) -> None:
    found = mark(graph, {}, hook=True, match_range=ASSIGNED, static=True)
    assert attrs(found, RANGE_ATTRIBUTE) == [None, "-1s", "-1s", "-1s"]
    assert (range_text(ASSIGNED, False), range_text(4, True)) == ("-1", "4")


def test_without_the_hook_mxnet_mirrors(graph: Graph) -> None:
    found = mark(graph, {1: [0]}, hook=False, match_range=2)
    assert attrs(found, MIRROR_ATTRIBUTE) == [None, "True", None, None]
    assert found.without_attrs(MIRROR_ATTRIBUTE) == graph


@pytest.mark.parametrize("hook", [True, False])
def test_marks_are_what_was_added(graph: Graph, hook: bool) -> None:
    found = mark(graph, {1: [0]}, hook, match_range=2)
    name = PLAN_ATTRIBUTE if hook else MIRROR_ATTRIBUTE
    assert marked(graph, found) == {1: name}
    assert [(each.node, each.op, name in each.attrs) for each in marks_of(graph, found)] == [(1, "tanh", True)]
    assert unmarked(graph, found) == graph
    assert marked(found, found) == {}, "the user's own are not the plan's"
    assert marks_of(found, found) == ()
    assert unmarked(found, found) == found


def test_other_gradients_are_seen(graph: Graph) -> None:
    assert not implements(graph)
    assert implements(graph.with_attrs({1: {GRADIENT_ATTRIBUTE: "a>b:0"}}))


@pytest.mark.parametrize(
    ("given", "outputs", "splits"),
    [
        ({PLAN_ATTRIBUTE: "0,2@17,230"}, (0, 2), (17, 230)),
        ({PLAN_ATTRIBUTE: "1"}, (1,), ()),
        ({MIRROR_ATTRIBUTE: "True"}, (0,), ()),
        ({RANGE_ATTRIBUTE: "2"}, (), ()),
    ],
)
def test_marks_are_read(given: dict[str, str], outputs: tuple[int, ...], splits: tuple[int, ...]) -> None:
    assert outputs_of(Mark(3, "tanh", given)) == outputs
    assert splits_of(Mark(3, "tanh", given)) == splits
