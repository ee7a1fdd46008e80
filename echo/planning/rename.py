"""A plan of one model under the names of another one: the same net built again differs in automatic names only.

`echo.plans.key` leaves names out of the key of a plan, so `dropout0` and `dropout5` share one. Reports name nodes, and
so the names in a plan change with the graph that it is bound to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Iterable, Mapping, Sequence

from echo.estimators.footprint import has_automatic_name, layer_named
from echo.ir.graph import Graph
from echo.plans.decisions import Memory
from echo.plans.plan import Plan

_WORD = re.compile(r"[^\s,;:'\"()]+")


@dataclass(frozen=True)
class Names:
    """The names of all nodes of the original graph, and of its base, which has the plan's fused operators."""

    user: tuple[str, ...]
    base: tuple[str, ...]

    @staticmethod
    def of(graph: Graph, base: Graph) -> Names:
        """Returns the names in these two graphs."""
        user = tuple([node.name for node in graph.nodes])
        return Names(user, user if base is graph else tuple([node.name for node in base.nodes]))


def renamed(plan: Plan, old: Names, new: Names, ops: Sequence[str]) -> Plan | None:
    """Returns the plan with the names of another graph of the same structure.

    Args:
        plan: made for a graph with the ``old`` names.
        old: the names when the plan was made.
        new: the names now.
        ops: the operator of each node of the base.

    Returns:
        None if the names do not correspond: two nodes that share a name have different names now, a layer became two,
        or a name cannot be told from the words around it.
    """
    if old == new:
        return plan
    if len(old.user) != len(new.user) or len(old.base) != len(new.base):
        return None
    pairs = dict.fromkeys((*zip(old.user, new.user), *zip(old.base, new.base)))
    words = _mapping(pairs)
    layers = _mapping((layer_named(before), layer_named(after)) for before, after in pairs)
    changed = {} if words is None else {before: after for before, after in words.items() if before != after}
    if words is None or layers is None or not all(map(_WORD.fullmatch, changed)):
        return None
    if any(has_automatic_name(op, one) != has_automatic_name(op, two) for op, one, two in zip(ops, old.base, new.base)):
        return None
    return _with_words(plan, changed, layers)


def _mapping(pairs: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Returns the pairs as a mapping, or None if one key has two values."""
    mapping: dict[str, str] = {}
    for before, after in pairs:
        if mapping.setdefault(before, after) != after:
            return None
    return mapping


def _with_words(plan: Plan, words: Mapping[str, str], layers: Mapping[str, str]) -> Plan:
    def text(sentence: str) -> str:
        return _WORD.sub(lambda match: words.get(match[0], match[0]), sentence)

    def memory(held: Memory) -> Memory:
        return replace(held, layers={layers.get(layer, layer): size for layer, size in held.layers.items()})

    return replace(
        plan,
        decisions=tuple(
            replace(decision, name=words.get(decision.name, decision.name), reason=text(decision.reason))
            for decision in plan.decisions
        ),
        before=memory(plan.before),
        after=memory(plan.after),
        notes=tuple(replace(note, text=text(note.text)) for note in plan.notes),
        missed=tuple(
            replace(missed, name=words.get(missed.name, missed.name), reason=text(missed.reason))
            for missed in plan.missed
        ),
        reason=text(plan.reason),
    )
