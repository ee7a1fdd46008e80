"""The plan cache: plans in files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from echo import kernels, native
from echo.errors import EchoError
from echo.ir.graph import Graph
from echo.passes.check_marks import with_marks
from echo.passes.request import Framework
from echo.planning.reuse import Names, PlannedGraph, fused_base, renamed
from echo.plans.decisions import RECOMPUTE, STASH, Decision
from echo.plans.plan import Plan
from echo.policies.least import Known
from echo.system import files

# The files of plans in the cache folder: their names, and a bound on their number and bytes.
#
# The least recently used files go first; reading a plan counts as a use. Listing a full folder takes as long as
# planning a graph of ten operators, so it is listed for one name of sixteen, and the bound may be passed by some
# files.

_MOST_FILES = 512
_MOST_BYTES = 256 << 20


def key_of(parts: Sequence[str]) -> str:
    """The name of a plan that depends on these texts, and on this echo."""
    digest = hashlib.sha256()
    for part in [*parts, _source()]:
        text = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(text) + text)
    return digest.hexdigest()[:40]


def path_of(key: str) -> Path:
    """Where the plan of this name is kept."""
    return files.cache_folder() / "plans" / f"{key}.json"


def keep(key: str, purpose: str, value: Mapping[str, Any]) -> None:
    """Writes the file of this name, for `echo.system.files.read`. A folder that cannot be written to is no error."""
    path = path_of(key)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if key.endswith("0"):  # a digit of a digest
            _make_room(path.parent)
        files.replace(path, purpose, value)
    except OSError as error:
        files.say_not_kept(error)


def read(key: str, purpose: str) -> dict[str, Any] | None:
    """Returns what `keep` wrote under this name, and counts it as used; None if there is nothing valid."""
    path = path_of(key)
    value = files.read(path, purpose)
    if value is not None:
        with contextlib.suppress(OSError):  # a folder that is read-only keeps its order
            os.utime(path, follow_symlinks=False)
    return value


def _make_room(folder: Path) -> None:
    plans = []
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.name.endswith(".json"):
                with contextlib.suppress(OSError):  # another process may make room, too
                    state = entry.stat(follow_symlinks=False)
                    plans.append((state.st_mtime, state.st_size, entry.path))
    number, size = len(plans), sum(of_file for _, of_file, _ in plans)
    for _, of_file, path in sorted(plans):
        if number < _MOST_FILES and size <= _MOST_BYTES:
            break
        number, size = number - 1, size - of_file
        with contextlib.suppress(OSError):
            os.unlink(path)


@functools.lru_cache(maxsize=None)
def _source() -> str:
    """A text that changes with the code of echo, since a plan holds for the code that made it.

    An editable install has the native libraries in folders of their own, which their packages know.
    """
    states = set()
    for root in (os.path.dirname(os.path.dirname(__file__)), *native.__path__, *kernels.__path__):
        for folder, _, names in os.walk(root):
            for name in names:
                if name.endswith((".py", ".so")):
                    path = os.path.join(folder, name)
                    state = os.stat(path)
                    states.add(f"{path} {state.st_size} {state.st_mtime_ns}")
    return ";".join(sorted(states))


# What searches for budgets found for a graph, whatever the budget: each schedule is evaluated before it is used.


def load_known(fingerprint: str) -> Known:
    """Returns the schedules that searches for budgets of this graph ended with."""
    key = key_of(("known", fingerprint))
    try:
        return Known(read(key, key))
    except (ValueError, AttributeError, TypeError):  # written by another hand
        return Known()


def keep_known(fingerprint: str, known: Known) -> None:
    """Keeps these schedules for the next process."""
    key = key_of(("known", fingerprint))
    keep(key, key, known.to_value())


# Plans on disk: the second start of a program plans in milliseconds.
#
# One file a plan, named by everything that the plan depends on: what it is made for (`echo.plans.key`), options, the
# device's times, MXNet's settings, and the code of echo itself. Names of nodes do not count: a plan takes those of
# the graph that it is loaded for (`echo.planning.reuse`). MXNet's planner confirmed the plan when it was made;
# asking it again would double the time of a bind, so the file has a digest, keyed by that name (`echo.system.files`).
# Plans of thousands of nodes are read in some milliseconds: a file has one list for each field of the decisions, and
# each repeated text once.

_FORMAT = "echo-stored-plan-8"
_TEXTS = "texts"  # the texts to which the numbers in the last three columns refer
_COLUMNS: dict[str, set[type]] = {
    "node": {int}, "name": {str}, "output": {int}, "bytes": {int}, "seconds": {int, float},
    "op": {int}, "action": {int}, "reason": {int},
}  # fmt: skip
_OF_TEXTS = ("op", "action", "reason")


def load(key: str, graph: Graph, framework: Framework) -> PlannedGraph | None:
    """Returns the plan of this name and the graph to bind, or None if there is none that fits the graph."""
    value = read(key, _purpose(key))
    if value is None:
        return None
    try:
        plan = Plan.from_json({**value["plan"], "decisions": ()})
        plan = replace(plan, decisions=tuple(_decisions(value["plan"]["decisions"])))
        base = fused_base(plan, graph, framework)
        names = Names.of(graph, base)
        renamed_plan = renamed(plan, _names(value["names"]), names, [node.op for node in base.nodes])
        if renamed_plan is None:
            return None
        return PlannedGraph(renamed_plan, with_marks(base, plan, framework), base, _chunks(value.get("chunks")), names)
    except (EchoError, KeyError, TypeError, ValueError, AttributeError) as error:
        files.ignore(path_of(key), f"{type(error).__name__}: {error}")
        return None


def save(key: str, found: PlannedGraph) -> None:
    """Writes a plan with its names and the chunks that MXNet wants for it.

    A folder that cannot be written to is no error.
    """
    plan, names = found.plan, found.names
    columns: dict[str, list[Any]] = {name: list(map(attrgetter(name), plan.decisions)) for name in _COLUMNS}
    texts: dict[str, int] = {}
    for name in _OF_TEXTS:
        columns[name] = [texts.setdefault(text, len(texts)) for text in columns[name]]
    columns[_TEXTS] = list(texts)
    stored = {**replace(plan, decisions=()).to_json(), "decisions": columns}
    base_names = None if names.base == names.original else names.base
    keep(key, _purpose(key), {"plan": stored, "chunks": found.chunks, "names": [names.original, base_names]})


def _purpose(key: str) -> str:
    return f"{_FORMAT} {key}"


def _decisions(columns: Mapping[str, list[Any]]) -> Iterator[Decision]:
    """The decisions from the list of each field.

    Raises:
        ValueError: a field is missing, unknown, of another type or of another length.
    """
    types_of: dict[str, set[type]] = {**_COLUMNS, _TEXTS: {str}}
    for name, types in types_of.items():
        if not isinstance(columns[name], list) or not types.issuperset(map(type, columns[name])):
            raise ValueError(f"decisions: {name} is not a list of {types}")
    fields = [columns[name] for name in _COLUMNS]
    if len(columns) != len(_COLUMNS) + 1 or len(set(map(len, fields))) != 1:
        raise ValueError("decisions: fields are unknown, or of several lengths")
    ops, actions, reasons = (_looked_up(columns[_TEXTS], columns[name]) for name in _OF_TEXTS)
    if not {RECOMPUTE, STASH}.issuperset(actions):
        raise ValueError("decisions: unknown actions")
    new, put = object.__new__, object.__setattr__  # as Decision(...), which takes several times as long
    for node, name, output, size, seconds, op, action, reason in zip(*fields[:-3], ops, actions, reasons):
        decision = new(Decision)
        put(decision, "__dict__", {
            "node": node, "name": name, "op": op, "output": output, "action": action, "bytes": size,
            "seconds": seconds, "reason": reason,
        })  # fmt: skip
        yield decision


def _looked_up(texts: Sequence[str], numbers: Sequence[int]) -> list[str]:
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(texts):
        raise ValueError("decisions: the number of a text that is not there")
    return list(map(texts.__getitem__, numbers))


def _chunks(value: Any) -> tuple[int, ...] | None:
    if value is not None and not (isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)):
        raise ValueError("chunks: not a list of bytes")
    return None if value is None else tuple(value)


def _names(value: Any) -> Names:
    original, base = value
    for names in (original, base or []):
        if not isinstance(names, list) or not {str}.issuperset(map(type, names)):
            raise ValueError("names: not a list of texts")
    return Names(tuple(original), tuple(original if base is None else base))
