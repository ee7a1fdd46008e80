"""Plans on disk: the second start of a program plans in milliseconds.

One file a plan, named by everything that the plan depends on: graph, shapes, types, options, device, and the source of
echo itself. A file holds the plan for the user and the attributes that apply it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Sequence

from echo import cache
from echo.errors import EchoError
from echo.graph import Graph
from echo.ops import HEAVY, LIGHT
from echo.passes.rewrite import MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.plan import Plan

_FORMAT = "echo-stored-plan-1"
_MOST_FILES = 512  # the oldest go first
_VALUES = {
    PLAN_ATTRIBUTE: re.compile(r"\d+(,\d+)*(@\d+(,\d+)*)?"),
    RANGE_ATTRIBUTE: re.compile(r"\d+|-1"),
    MIRROR_ATTRIBUTE: re.compile(r"True"),
}


def key_of(parts: Sequence[str]) -> str:
    """The name of a plan that depends on these texts, and on this echo."""
    return hashlib.sha256(json.dumps([*parts, _source()]).encode()).hexdigest()[:40]


def load(key: str, graph: Graph) -> tuple[Plan, Graph] | None:
    """The plan of this name and the graph to bind; None where there is none, or none that fits the graph."""
    value = cache.read(_path(key), _FORMAT)
    if value is None or value.get("key") != key:
        return None
    try:
        plan, marks = Plan.from_json(value["plan"]), value["marks"]
        return plan, graph.with_attrs({int(number): _checked(graph, int(number), marks[number]) for number in marks})
    except (EchoError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def save(key: str, plan: Plan, graph: Graph) -> None:
    """Keeps a plan, with the graph to bind. A folder that cannot be written to is no error."""
    marks = {
        str(number): found
        for number, node in enumerate(graph.nodes)
        if (found := {name: node.attrs[name] for name in _VALUES if name in node.attrs})
    }
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        value = {"format": _FORMAT, "key": key, "plan": plan.to_json(), "marks": {} if plan.changes_nothing else marks}
        cache.replace(path, value)


def _path(key: str) -> Path:
    return cache.cache_folder() / "plans" / f"{key}.json"


def _checked(graph: Graph, number: int, marks: Any) -> dict[str, str]:
    """Attributes that a plan may add to this node.

    Raises:
        ValueError: any others.
    """
    node = graph.nodes[number]
    recomputed = any(name != RANGE_ATTRIBUTE for name in marks)
    if number < 0 or node.is_variable or (recomputed and node.op not in LIGHT and node.op not in HEAVY):
        raise ValueError(f"{node.name!r} cannot be recomputed")
    if not all(_VALUES[name].fullmatch(text) for name, text in marks.items()):
        raise ValueError(f"{node.name!r}: not a plan: {marks!r}")
    return dict(marks)


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
