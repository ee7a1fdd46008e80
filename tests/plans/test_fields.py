"""Values read from JSON are held against their types; the message says which, and shows no more than a little of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Callable

import pytest

from echo.errors import GraphError
from echo.plans.decisions import RECOMPUTE, Decision, Mark, Memory, Missed, Note, NoteKind
from echo.plans.fields import (
    MOST,
    NUMBER,
    REAL,
    TEXT,
    check,
    read_decision,
    read_mark,
    read_memory,
    read_missed,
    read_note,
    read_place,
)

DECISION = Decision(4, "fc", "FullyConnected", 0, RECOMPUTE, 100, 0.5, "why")
MEMORY = Memory(100, 80, {"weights": 7}, {"maps": 3}, {"layer": 2})
MISSED = Missed(4, "fc", "lstm_cell", "why")


def test_what_fits_is_read() -> None:
    assert read_decision(asdict(DECISION)) == DECISION
    assert read_memory("before", asdict(MEMORY)) == MEMORY
    assert read_missed(asdict(MISSED)) == MISSED
    assert read_mark([4, "tanh", {"a": "b"}]) == Mark(4, "tanh", {"a": "b"})
    assert read_place(["rnn", 3]) == ("rnn", 3)
    assert read_note(["late", "a text"]) == Note("a text", NoteKind.LATE)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [(NUMBER, 3, 3.0), (NUMBER, MOST - 1, MOST), (NUMBER, -3, True), (REAL, 0.5, float("inf")), (REAL, 3, "3"),
     (REAL, 1.0, float("nan")), (TEXT, "3", 3)],
)  # fmt: skip
def test_kinds(kind: Any, good: Any, bad: Any) -> None:
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
        (lambda: read_place([3, 3]), "fused: expected the name of a pattern and the number of a node"),
        (lambda: read_place(["rnn", False]), "fused: expected the name of a pattern and the number of a node"),
        (lambda: read_missed({**asdict(MISSED), "pattern": 3}), "missed: pattern must be a text, got 3"),
        (lambda: read_missed({**asdict(MISSED), "quiet": 1}), "missed: quiet must be true or false, got 1"),
        (lambda: read_note(["remark", 3]), "notes: expected a text, got 3"),
        (lambda: read_note(["shout", "a text"]), "notes: expected one of remark, failed, late, got 'shout'"),
        (lambda: read_note("ab"), "notes: expected one of remark, failed, late, got 'a'"),
        (lambda: read_memory("after", {**asdict(MEMORY), "planned": None}), "after: planned must be a number"),
        (lambda: read_memory("after", {**asdict(MEMORY), "layers": {"a": 0.5}}), "after: layers must map names"),
        (lambda: read_memory("after", {**asdict(MEMORY), "static": [1]}), "after: static must map names to bytes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(read: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        read()
    assert len(str(caught.value)) < 250
