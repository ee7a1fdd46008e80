"""Values of a plan that were read from JSON: each is held against its type before anything uses it."""

from __future__ import annotations

from typing import Any, Mapping, Tuple, Type

from echo.errors import GraphError
from echo.plans.decisions import RECOMPUTE, STASH, Decision, Mark, Memory, Missed
from echo.system.reading import shortened

_Kind = Tuple[Type[Any], ...]
NUMBER: _Kind = (int,)
REAL: _Kind = (int, float)
TEXT: _Kind = (str,)
MOST = 2**62  # of bytes, of seconds: beyond are no numbers that mean anything, nor infinities and what is no number
_KIND_NAMES = {NUMBER: "a number", REAL: "a number", TEXT: "a text"}
_DECISION_KINDS = {
    "node": NUMBER, "name": TEXT, "op": TEXT, "output": NUMBER, "action": TEXT, "bytes": NUMBER,
    "seconds": REAL, "reason": TEXT,
}  # fmt: skip


def _short(value: object) -> str:
    return shortened(repr(value) if not isinstance(value, int) or abs(value) < MOST else "a number too large")


def check(name: str, value: Any, kinds: Mapping[str, _Kind]) -> None:
    """Raises `GraphError` unless each attribute of a value is of its kind; ``name`` is what messages call the value."""
    for key, kind in kinds.items():
        found = getattr(value, key)
        if not isinstance(found, kind) or isinstance(found, bool) or (kind != TEXT and not abs(found) < MOST):
            raise GraphError(f"{name}: {key} must be {_KIND_NAMES[kind]}, got {_short(found)}")


def read_decision(value: Mapping[str, Any]) -> Decision:
    decision = Decision(**value)
    check(str(decision.name), decision, _DECISION_KINDS)
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
    return missed


def read_memory(name: str, value: Mapping[str, Any]) -> Memory:
    memory = Memory(**value)
    check(name, memory, {"planned": NUMBER, "live_peak": NUMBER})
    for key in ("static", "at_peak", "layers"):
        found = getattr(memory, key)
        if not isinstance(found, dict) or not all(type(size) is int and abs(size) < MOST for size in found.values()):
            raise GraphError(f"{name}: {key} must map names to bytes, got {_short(found)}")
    return memory
