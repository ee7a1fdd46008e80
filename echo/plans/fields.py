"""Reads the values of a plan from JSON, and checks the type of each before anything uses it."""

from __future__ import annotations

from typing import Any, Mapping, Tuple, Type

from echo.errors import GraphError
from echo.plans.decisions import RECOMPUTE, STASH, Decision, Mark, Memory, Missed, Note, NoteKind
from echo.system.files import shortened

_Types = Tuple[Type[Any], ...]
NUMBER: _Types = (int,)
REAL: _Types = (int, float)
TEXT: _Types = (str,)
MOST = 2**62  # bytes or seconds; larger numbers, infinities and NaN are refused
_TYPE_NAMES = {NUMBER: "a number", REAL: "a number", TEXT: "a text"}
_DECISION_TYPES = {
    "node": NUMBER, "name": TEXT, "op": TEXT, "output": NUMBER, "action": TEXT, "bytes": NUMBER,
    "seconds": REAL, "reason": TEXT,
}  # fmt: skip


def _short(value: object) -> str:
    return shortened(repr(value) if not isinstance(value, int) or abs(value) < MOST else "a number too large")


def check(name: str, value: Any, types: Mapping[str, _Types]) -> None:
    """Raises `GraphError` unless each attribute of a value is of its type; ``name`` is what messages call the value."""
    for key, expected in types.items():
        item = getattr(value, key)
        if not isinstance(item, expected) or isinstance(item, bool) or (expected != TEXT and not abs(item) < MOST):
            raise GraphError(f"{name}: {key} must be {_TYPE_NAMES[expected]}, got {_short(item)}")


def read_decision(value: Mapping[str, Any]) -> Decision:
    decision = Decision(**value)
    check(str(decision.name), decision, _DECISION_TYPES)
    if decision.action not in (STASH, RECOMPUTE):
        raise GraphError(f"{decision.name}: expected action stash or recompute, got {decision.action!r}")
    return decision


_TEXTS = frozenset((str,))


def read_mark(value: Any) -> Mark:
    node, op, attrs = value
    if type(node) is not int or not isinstance(op, str):
        raise GraphError(f"marks: expected the number and the operator of a node, got {node!r} and {op!r}")
    if not isinstance(attrs, dict) or not _TEXTS.issuperset(map(type, (*attrs, *attrs.values()))):
        raise GraphError(f"marks: expected attributes of node {node}, got {attrs!r}")
    return Mark(node, op, attrs)


def read_place(value: Any) -> tuple[str, int]:
    pattern, node = value
    if not isinstance(pattern, str) or type(node) is not int:
        raise GraphError(f"fused: expected the name of a pattern and the number of a node, got {value!r}")
    return pattern, node


def read_missed(value: Mapping[str, Any]) -> Missed:
    missed = Missed(**value)
    check("missed", missed, {"node": NUMBER, "name": TEXT, "pattern": TEXT, "reason": TEXT})
    if not isinstance(missed.quiet, bool):
        raise GraphError(f"missed: quiet must be true or false, got {_short(missed.quiet)}")
    return missed


def read_note(value: Any) -> Note:
    kind, text = value
    if not isinstance(text, str):
        raise GraphError(f"notes: expected a text, got {_short(text)}")
    kinds = {known.value: known for known in NoteKind}
    if not isinstance(kind, str) or kind not in kinds:
        raise GraphError(f"notes: expected one of {', '.join(kinds)}, got {_short(kind)}")
    return Note(text, kinds[kind])


def read_memory(name: str, value: Mapping[str, Any]) -> Memory:
    memory = Memory(**value)
    check(name, memory, {"planned": NUMBER, "live_peak": NUMBER})
    for key in ("static", "at_peak", "layers"):
        sizes = getattr(memory, key)
        if not isinstance(sizes, dict) or not all(type(size) is int and abs(size) < MOST for size in sizes.values()):
            raise GraphError(f"{name}: {key} must map names to bytes, got {_short(sizes)}")
    return memory
