"""Plans on disk: the second start of a program plans in milliseconds.

One file a plan, named by everything that the plan depends on: graph, shapes, types, options, device, and the source of
echo itself. A file holds the plan for the user and the attributes that apply it. Graphs of thousands of nodes are
read in some milliseconds: decisions are kept as a list for each field, attributes as the nodes that have each value.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from echo import cache
from echo.errors import EchoError
from echo.graph import VARIABLE, Graph
from echo.ops import HEAVY, LIGHT
from echo.passes.rewrite import MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.plan import RECOMPUTE, STASH, Decision, Plan

_FORMAT = "echo-stored-plan-2"
_MOST_FILES = 512  # the oldest go first
_VALUES = {
    PLAN_ATTRIBUTE: re.compile(r"\d+(,\d+)*"),
    RANGE_ATTRIBUTE: re.compile(r"\d+|-1"),
    MIRROR_ATTRIBUTE: re.compile(r"True"),
}
_COLUMNS: dict[str, set[type]] = {
    "node": {int}, "name": {str}, "op": {str}, "output": {int}, "action": {str}, "bytes": {int},
    "seconds": {int, float}, "reason": {str},
}  # fmt: skip


def key_of(parts: Sequence[str]) -> str:
    """The name of a plan that depends on these texts, and on this echo."""
    return hashlib.sha256(json.dumps([*parts, _source()]).encode()).hexdigest()[:40]


def load(key: str, graph: Graph) -> tuple[Plan, Graph] | None:
    """The plan of this name and the graph to bind; None where there is none, or none that fits the graph."""
    value = cache.read(_path(key), _FORMAT)
    if value is None or value.get("key") != key:
        return None
    try:
        plan = Plan.from_json({**value["plan"], "decisions": ()})
        plan = replace(plan, decisions=tuple(_decisions(value["plan"]["decisions"])))
        return plan, graph.with_attrs(_checked(graph, value["marks"]))
    except (EchoError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def save(key: str, plan: Plan, graph: Graph) -> None:
    """Keeps a plan, with the graph to bind. A folder that cannot be written to is no error."""
    marks: dict[str, dict[str, list[int]]] = {name: {} for name in _VALUES}
    for number, node in enumerate(graph.nodes if not plan.changes_nothing else ()):
        for name in _VALUES:
            if name in node.attrs:
                marks[name].setdefault(node.attrs[name], []).append(number)
    columns = {name: [getattr(decision, name) for decision in plan.decisions] for name in _COLUMNS}
    stored = {**replace(plan, decisions=()).to_json(), "decisions": columns}
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        cache.replace(path, {"format": _FORMAT, "key": key, "plan": stored, "marks": marks})


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


def _checked(graph: Graph, marks: Mapping[str, Mapping[str, list[int]]]) -> dict[int, dict[str, str]]:
    """The attributes that a plan adds to each node.

    Raises:
        ValueError: others than a plan may add, or to a node that must not have them.
    """
    added: dict[int, dict[str, str]] = {}
    for name, by_text in marks.items():
        recomputes = name != RANGE_ATTRIBUTE
        for text, numbers in by_text.items():
            if not _VALUES[name].fullmatch(text) or not {int}.issuperset(map(type, numbers)):
                raise ValueError(f"not a plan: {name} {text!r}")
            if numbers and not 0 <= min(numbers) <= max(numbers) < len(graph.nodes):
                raise ValueError(f"not a plan for {len(graph.nodes)} nodes: {name} {text!r}")
            ops = {graph.nodes[number].op for number in numbers}
            if VARIABLE in ops or (recomputes and not ops <= LIGHT | HEAVY):
                raise ValueError(f"some of {sorted(ops)} cannot be recomputed")
            for number in numbers:
                added.setdefault(number, {})[name] = text
    return added


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
