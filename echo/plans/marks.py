"""Marks: how a plan is written into attributes of the user's nodes, and read from them."""

from __future__ import annotations

from typing import Mapping, Sequence

from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, OF_PLANS, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.training_graph import ASSIGNED
from echo.plans.decisions import Mark


def mark(
    graph: Graph,
    outputs: Mapping[int, list[int]],
    hook: bool,
    match_range: int | None = None,
    splits: Mapping[int, Sequence[int]] | None = None,
    static: bool = False,
) -> Graph:
    """The graph in which these outputs of these nodes are marked as recomputed.

    ``splits`` are backward nodes, counted from 0, at which another copy of a node begins; by default all of them read
    the same copy. A match range is written beside each mark, or into every node where nothing is recomputed; ``static``
    says that a CachedOp with static_alloc runs the graph.
    """
    if not hook:
        return graph.with_attrs({number: {MIRROR_ATTRIBUTE: "True"} for number in outputs})
    texts = {number: _text(out, (splits or {}).get(number, ())) for number, out in outputs.items()}
    marked = graph.with_attrs({number: {PLAN_ATTRIBUTE: text} for number, text in texts.items()})
    if match_range is None:
        return marked
    operators = [number for number, node in enumerate(graph.nodes) if not node.is_variable and node.takes_attrs]
    text = range_text(match_range, static)
    return marked.with_attrs({number: {RANGE_ATTRIBUTE: text} for number in outputs or operators})


def range_text(match_range: int, static: bool) -> str:
    """A match range as the hook reads it; ``static`` as for `mark`."""
    return f"{match_range}s" if static and match_range == ASSIGNED else str(match_range)


def _text(outputs: Sequence[int], splits: Sequence[int]) -> str:
    suffix = "" if list(splits) in ([], [0]) else "@" + ",".join(map(str, splits))
    return ",".join(map(str, sorted(outputs))) + suffix


def marked(user: Graph, rewritten: Graph) -> dict[int, str]:
    """The nodes that a plan runs again, with the attribute that says so; not those that the user marked himself."""
    return {
        number: name
        for number, (before, after) in enumerate(zip(user.nodes, rewritten.nodes))
        for name in (PLAN_ATTRIBUTE, MIRROR_ATTRIBUTE)
        if name in after.attrs and name not in before.attrs
    }


def implements(graph: Graph) -> bool:
    """Whether a rewritten graph computes gradients by rules of echo's."""
    return any(GRADIENT_ATTRIBUTE in node.attrs for node in graph.nodes)


def unmarked(user: Graph, rewritten: Graph) -> Graph:
    """A rewritten graph that came back from MXNet, without the marks of the plan."""
    user_attributes = set().union(*(node.attrs for node in user.nodes))
    return rewritten.without_attrs(*set(OF_PLANS) - user_attributes)


def marks_of(user: Graph, rewritten: Graph) -> tuple[Mark, ...]:
    """The attributes of plans that a rewritten graph adds to the user's; `echo.passes.check_marks` applies them."""
    added = (
        {name: after.attrs[name] for name in OF_PLANS if name in after.attrs and name not in before.attrs}
        for before, after in zip(user.nodes, rewritten.nodes)
    )
    return tuple(Mark(number, user.nodes[number].op, attrs) for number, attrs in enumerate(added) if attrs)


def outputs_of(mark: Mark) -> tuple[int, ...]:
    """The outputs that a mark recomputes; under MXNet's own mirroring the first, which stands for all."""
    if MIRROR_ATTRIBUTE in mark.attrs:
        return (0,)
    outputs, _, _ = mark.attrs.get(PLAN_ATTRIBUTE, "").partition("@")
    return tuple(int(output) for output in outputs.split(",") if output)


def splits_of(mark: Mark) -> tuple[int, ...]:
    """The backward nodes, counted from 0, at which another copy begins; none where all read the same copy."""
    _, _, splits = mark.attrs.get(PLAN_ATTRIBUTE, "").partition("@")
    return tuple(int(split) for split in splits.split(",") if split)
