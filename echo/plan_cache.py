"""Plans on disk: the second start of a program plans in milliseconds.

One file a plan, named by everything that the plan depends on: what it is made for (`echo.subject`), the names in it,
options, the device's times, and the source of echo itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from echo import cache
from echo.errors import EchoError, GraphError
from echo.graph import Graph
from echo.passes.rewrite import with_marks
from echo.plan import Plan

_FORMAT = "echo-stored-plan-2"
_MOST_FILES = 512  # the oldest go first


class Found(NamedTuple):
    """A plan, the graph to bind, and the bytes of each chunk that MXNet wants for it (None: not known)."""

    plan: Plan
    graph: Graph
    chunks: tuple[int, ...] | None = None


def key_of(parts: Sequence[str]) -> str:
    """The name of a plan that depends on these texts, and on this echo."""
    return hashlib.sha256(json.dumps([*parts, _source()]).encode()).hexdigest()[:40]


def load(key: str, graph: Graph) -> Found | None:
    """The plan of this name and the graph to bind; None where there is none, or none that fits the graph."""
    value = cache.read(_path(key), _FORMAT)
    if value is None or value.get("key") != key:
        return None
    try:
        plan = Plan.from_json(value["plan"])
        return Found(plan, with_marks(graph, plan.marks), _chunks(value.get("chunks")))
    except (EchoError, KeyError):
        return None


def _chunks(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise GraphError(f"chunks: expected a list of bytes, got {value!r}")
    return tuple(value)


def save(key: str, plan: Plan, chunks: Sequence[int] | None = None) -> None:
    """Keeps a plan, and the chunks that MXNet wants for it. A folder that cannot be written to is no error."""
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        cache.replace(path, {"format": _FORMAT, "key": key, "plan": plan.to_json(), "chunks": chunks})


def _path(key: str) -> Path:
    return cache.cache_folder() / "plans" / f"{key}.json"


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
