"""Plans on disk: the second start of a program plans in milliseconds.

One file a plan, named by everything that the plan depends on: what it is made for (`echo.subject`), the names in it,
options, the device's times, and the source of echo itself. Graphs of thousands of nodes are read in
some milliseconds: decisions are kept as a list for each field.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from echo import cache
from echo.errors import EchoError
from echo.graph import Graph
from echo.passes.request import Frontend
from echo.passes.rewrite import with_marks
from echo.plan import RECOMPUTE, STASH, Decision, Plan
from echo.reuse import fused_base

_FORMAT = "echo-stored-plan-4"
_MOST_FILES = 512  # the oldest go first
_COLUMNS: dict[str, set[type]] = {
    "node": {int}, "name": {str}, "op": {str}, "output": {int}, "action": {str}, "bytes": {int},
    "seconds": {int, float}, "reason": {str},
}  # fmt: skip


class Found(NamedTuple):
    """A plan, the graph to bind, and the bytes of each chunk that MXNet wants for it (None: not known).

    ``base`` is the user's graph with the plan's fused operators, without its marks.
    """

    plan: Plan
    graph: Graph
    base: Graph
    chunks: tuple[int, ...] | None = None


def key_of(parts: Sequence[str]) -> str:
    """The name of a plan that depends on these texts, and on this echo."""
    return hashlib.sha256(json.dumps([*parts, _source()]).encode()).hexdigest()[:40]


def load(key: str, graph: Graph, frontend: Frontend) -> Found | None:
    """The plan of this name and the graph to bind; None where there is none, or none that fits the graph."""
    value = cache.read(_path(key), _FORMAT)
    if value is None or value.get("key") != key:
        return None
    try:
        plan = Plan.from_json({**value["plan"], "decisions": ()})
        plan = replace(plan, decisions=tuple(_decisions(value["plan"]["decisions"])))
        base = fused_base(plan, graph, frontend)
        return Found(plan, with_marks(base, plan.marks), base, _chunks(value.get("chunks")))
    except (EchoError, KeyError, TypeError, ValueError, AttributeError):
        return None


def save(key: str, plan: Plan, chunks: Sequence[int] | None = None) -> None:
    """Keeps a plan, and the chunks that MXNet wants for it. A folder that cannot be written to is no error."""
    columns = {name: [getattr(decision, name) for decision in plan.decisions] for name in _COLUMNS}
    stored = {**replace(plan, decisions=()).to_json(), "decisions": columns}
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        cache.replace(path, {"format": _FORMAT, "key": key, "plan": stored, "chunks": chunks})


def _path(key: str) -> Path:
    return cache.cache_folder() / "plans" / f"{key}.json"


def _decisions(columns: Mapping[str, list[Any]]) -> Iterator[Decision]:
    """The decisions from the list of each field.

    Raises:
        ValueError: a field is missing, unknown, of another type or of another length.
    """
    fields = [columns[name] for name in _COLUMNS]
    for (name, kinds), items in zip(_COLUMNS.items(), fields):
        if not isinstance(items, list) or not kinds.issuperset(map(type, items)):
            raise ValueError(f"decisions: {name} is not a list of {kinds}")
    if len(columns) != len(_COLUMNS) or len(set(map(len, fields))) != 1:
        raise ValueError("decisions: fields are unknown, or of several lengths")
    if not {RECOMPUTE, STASH}.issuperset(columns["action"]):
        raise ValueError("decisions: unknown actions")
    for node, name, op, output, action, size, seconds, reason in zip(*fields):
        decision = object.__new__(Decision)  # as Decision(...), which takes several times as long
        object.__setattr__(decision, "__dict__", {
            "node": node, "name": name, "op": op, "output": output, "action": action, "bytes": size,
            "seconds": seconds, "reason": reason,
        })  # fmt: skip
        yield decision


def _chunks(value: Any) -> tuple[int, ...] | None:
    if value is not None and not (isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)):
        raise ValueError("chunks: not a list of bytes")
    return None if value is None else tuple(value)


def _make_room(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - _MOST_FILES + 1)]:
        path.unlink()


@functools.lru_cache(maxsize=None)
def _source() -> str:
    """A text that changes with the source of echo: a plan of other code is not this code's plan."""
    root = Path(__file__).parent
    files = sorted([*root.rglob("*.py"), *root.rglob("*.so")])
    return ";".join(f"{path.relative_to(root)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
