"""The sums of a plan's memory, and which near-misses the user is told of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Callable

import mxnet as mx
import pytest

from echo.errors import GraphError
from echo.frontend.symbols import graph_of
from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.training_graph import StorageStrategy
from echo.plans.decisions import (
    LAYOUT_COPIES,
    MOST,
    NUMBER,
    REAL,
    RECOMPUTE,
    TEXT,
    WORKSPACES,
    Decision,
    Mark,
    Memory,
    MissedFusion,
    Note,
    NoteKind,
    check,
    has_gradient_rules,
    mark,
    marked,
    marks_of,
    near_misses,
    outputs_of,
    range_text,
    read_decision,
    read_mark,
    read_match_site,
    read_memory,
    read_missed,
    read_note,
    splits_of,
    unmarked,
)


@pytest.mark.parametrize(("static", "kept", "total"), [({}, 0, 100), ({"weights": 7, LAYOUT_COPIES: 5}, 5, 112)])
def test_memory_sums_static_and_planned_bytes(static: dict[str, int], kept: int, total: int) -> None:
    memory = Memory(planned=100, live_peak=80, static=static, at_peak={}, layers={})
    assert (memory.layout_copies, memory.chosen, memory.total) == (kept, 100 + kept, total)


def test_workspaces_are_no_choice_of_the_plan() -> None:
    """They follow from the fused operators, whatever is recomputed."""
    memory = Memory(100, 0, {"weights": 7, WORKSPACES: 5}, {}, {})
    assert (memory.workspaces, memory.chosen, memory.total) == (5, 100, 112)


def test_near_misses_come_by_their_reasons_the_most_frequent_first() -> None:
    reasons = ["a", "b", "b", "c", "c", "c", "d", "quiet"]
    missed = [
        MissedFusion(number, f"n{number}", "gru_cell", reason, reason == "quiet")
        for number, reason in enumerate(reasons)
    ]
    assert [[each.node for each in group] for group in near_misses(missed)] == [[3, 4, 5], [1, 2], [0]]
    assert near_misses(missed[-1:]) == []


DECISION = Decision(4, "fc", "FullyConnected", 0, RECOMPUTE, 100, 0.5, "why")
MEMORY = Memory(100, 80, {"weights": 7}, {"maps": 3}, {"layer": 2})
MISSED = MissedFusion(4, "fc", "lstm_cell", "why")


def test_valid_records_are_read_back() -> None:
    assert read_decision(asdict(DECISION)) == DECISION
    assert read_memory("before", asdict(MEMORY)) == MEMORY
    assert read_missed(asdict(MISSED)) == MISSED
    assert read_mark([4, "tanh", {"a": "b"}]) == Mark(4, "tanh", {"a": "b"})
    assert read_match_site(["rnn", 3]) == ("rnn", 3)
    assert read_note(["late", "a text"]) == Note("a text", NoteKind.LATE)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [(NUMBER, 3, 3.0), (NUMBER, MOST - 1, MOST), (NUMBER, -3, True), (REAL, 0.5, float("inf")), (REAL, 3, "3"),
     (REAL, 1.0, float("nan")), (TEXT, "3", 3)],
)  # fmt: skip
def test_field_of_another_kind_raises_graph_error(kind: Any, good: Any, bad: Any) -> None:
    class Holder:
        field: Any = good

    check("it", Holder, {"field": kind})
    Holder.field = bad
    with pytest.raises(GraphError, match=r"it: field must be a (number|text), got "):
        check("it", Holder, {"field": kind})


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: read_decision({**asdict(DECISION), "action": "hope"}), "fc: expected action stash or recompute"),
        (lambda: read_decision({**asdict(DECISION), "bytes": "x" * 1000}), r"bytes must be a number, got 'x+\.\.\."),
        (lambda: read_mark([True, "tanh", {}]), "marks: expected the number and the operator of a node, got True"),
        (lambda: read_mark([4, "tanh", {"a": 1}]), "marks: expected attributes of node 4, got"),
        (lambda: read_mark([4, "tanh", ["a"]]), "marks: expected attributes of node 4, got"),
        (lambda: read_match_site([3, 3]), "fused: expected the name of a pattern and the number of a node"),
        (lambda: read_match_site(["rnn", False]), "fused: expected the name of a pattern and the number of a node"),
        (lambda: read_missed({**asdict(MISSED), "pattern": 3}), "missed: pattern must be a text, got 3"),
        (lambda: read_missed({**asdict(MISSED), "quiet": 1}), "missed: quiet must be true or false, got 1"),
        (lambda: read_note(["remark", 3]), "notes: expected a text, got 3"),
        (lambda: read_note(["shout", "a text"]), "notes: expected one of remark, failed, late, got 'shout'"),
        (lambda: read_note("ab"), "notes: expected lists of 2 values, got 'ab'"),
        (lambda: read_memory("after", {**asdict(MEMORY), "planned": None}), "after: planned must be a number"),
        (lambda: read_memory("after", {**asdict(MEMORY), "layers": {"a": 0.5}}), "after: layers must map names"),
        (lambda: read_memory("after", {**asdict(MEMORY), "static": [1]}), "after: static must map names to bytes"),
    ],
)  # fmt: skip
def test_invalid_record_raises_graph_error(read: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        read()
    assert len(str(caught.value)) < 250


@pytest.fixture(scope="module")
def graph() -> Graph:
    """data, its tanh, two slices of that, and the sum of them."""
    parts = mx.sym.SliceChannel(mx.sym.tanh(mx.sym.var("data"), name="tanh"), num_outputs=2, name="parts")
    return graph_of(mx.sym.elemwise_add(parts[0], parts[1], name="sum"))


def attrs(graph: Graph, name: str) -> list[str | None]:
    return [node.attrs.get(name) for node in graph.nodes]


def test_outputs_and_positions_are_written_next_to_the_range(graph: Graph) -> None:
    found = mark(graph, {1: [0], 2: [1, 0]}, hook=True, match_range=2, splits={1: [0], 2: [3, 7]})
    assert attrs(found, PLAN_ATTRIBUTE) == [None, "0", "0,1@3,7", None]
    assert attrs(found, RANGE_ATTRIBUTE) == [None, "2", "2", None]
    assert attrs(mark(graph, {1: [0]}, hook=True), RANGE_ATTRIBUTE) == [None] * 4


def test_a_range_alone_is_written_into_every_operator(graph: Graph) -> None:
    found = mark(graph, {}, hook=True, match_range=StorageStrategy.ASSIGNED, static=True)
    assert attrs(found, RANGE_ATTRIBUTE) == [None, "-1s", "-1s", "-1s"]
    assert (range_text(StorageStrategy.ASSIGNED, False), range_text(4, True)) == ("-1", "4")


def test_mark_without_the_hook_sets_mirroring(graph: Graph) -> None:
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


def test_graph_with_exchanged_gradient_implements(graph: Graph) -> None:
    assert not has_gradient_rules(graph)
    assert has_gradient_rules(graph.with_attrs({1: {GRADIENT_ATTRIBUTE: "a>b:0"}}))


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
