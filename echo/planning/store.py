"""Plans on disk: the second start of a program plans in milliseconds.

One file a plan, named by everything that the plan depends on: what it is made for (`echo.plans.key`), options, the
device's times, MXNet's settings, and the code of echo itself. Names of nodes do not count: a plan takes those of the
graph that it is loaded for (`echo.planning.rename`). MXNet's planner confirmed the plan when it was made; asking it
again would double the time of a bind, so the file has a digest, keyed by that name (`echo.system.files`). Plans of
thousands of nodes are read in some milliseconds: a file has one list for each field of the decisions, and each repeated
text once.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from echo.errors import EchoError
from echo.ir.graph import Graph
from echo.passes.check_marks import with_marks
from echo.passes.request import Frontend
from echo.planning.plan_files import keep, path_of, read
from echo.planning.rename import Names, renamed
from echo.planning.reuse import fused_base
from echo.plans.decisions import RECOMPUTE, STASH, Decision
from echo.plans.plan import Plan
from echo.system import files

_FORMAT = "echo-stored-plan-7"
_TEXTS = "texts"  # the texts to which the numbers in the last three columns refer
_COLUMNS: dict[str, set[type]] = {
    "node": {int}, "name": {str}, "output": {int}, "bytes": {int}, "seconds": {int, float},
    "op": {int}, "action": {int}, "reason": {int},
}  # fmt: skip
_OF_TEXTS = ("op", "action", "reason")


class Found(NamedTuple):
    """A plan, the graph to bind, and the bytes of each chunk that MXNet wants for it (None: not known).

    ``base`` is the original graph with the plan's fused operators, without its marks. ``names`` are those that the plan
    was made or loaded for.
    """

    plan: Plan
    graph: Graph
    base: Graph
    chunks: tuple[int, ...] | None = None
    names: Names = Names((), ())

    def for_graph(self, graph: Graph, frontend: Frontend) -> Found | None:
        """Returns the same plan for an equal graph under other names, or None if names do not correspond.

        Raises:
            GraphError: a fused operator or a mark does not fit the graph.
        """
        if self.names.user == tuple([node.name for node in graph.nodes]):
            return self
        base = fused_base(self.plan, graph, frontend)
        names = Names.of(graph, base)
        plan = renamed(self.plan, self.names, names, [node.op for node in base.nodes])
        return None if plan is None else Found(plan, with_marks(base, plan, frontend), base, self.chunks, names)


def load(key: str, graph: Graph, frontend: Frontend) -> Found | None:
    """Returns the plan of this name and the graph to bind, or None if there is none that fits the graph."""
    value = read(key, _purpose(key))
    if value is None:
        return None
    try:
        plan = Plan.from_json({**value["plan"], "decisions": ()})
        plan = replace(plan, decisions=tuple(_decisions(value["plan"]["decisions"])))
        base = fused_base(plan, graph, frontend)
        names = Names.of(graph, base)
        renamed_plan = renamed(plan, _names(value["names"]), names, [node.op for node in base.nodes])
        if renamed_plan is None:
            return None
        return Found(renamed_plan, with_marks(base, plan, frontend), base, _chunks(value.get("chunks")), names)
    except (EchoError, KeyError, TypeError, ValueError, AttributeError) as error:
        files.ignore(path_of(key), f"{type(error).__name__}: {error}")
        return None


def save(key: str, found: Found) -> None:
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
    base_names = None if names.base == names.user else names.base
    keep(key, _purpose(key), {"plan": stored, "chunks": found.chunks, "names": [names.user, base_names]})


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
    user, base = value
    for names in (user, base or []):
        if not isinstance(names, list) or not {str}.issuperset(map(type, names)):
            raise ValueError("names: not a list of texts")
    return Names(tuple(user), tuple(user if base is None else base))
