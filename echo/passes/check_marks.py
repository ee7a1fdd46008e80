"""Checks the marks of plans that may come from anywhere, by the rules for making them.

A plan may come from the disk, from a user's file, or from a user's program. A mark that `echo.passes.rewrite` could not
have written for this graph is an error. The native hook checks the marks again.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Sequence

from echo.errors import GraphError
from echo.estimators.inplace import as_stock, displacing, moved, over_first_input
from echo.estimators.layouts import copied, shape_only_hazard
from echo.ir.gradient_rules import gradient_rules, known
from echo.ir.graph import Graph, Node
from echo.ir.op_spec import (
    GRADIENT_ATTRIBUTE,
    MIRROR_ATTRIBUTE,
    NO_INPLACE_ATTRIBUTE,
    PLAN_ATTRIBUTE,
    RANGE_ATTRIBUTE,
    GradientRule,
)
from echo.ir.training_graph import Runner, StorageStrategy, TrainingGraph, common_subexpressions
from echo.ir.training_node import TensorType, TrainingNode, all_outputs, why_not_recomputable
from echo.passes.analysis import Candidates, FindCandidates
from echo.passes.request import Framework, Request
from echo.passes.rewrite import gradient_marks, on_equal_nodes
from echo.passes.select import MATCH_RANGES
from echo.plans.decisions import Mark, outputs_of, range_text, recomputed_in, splits_of
from echo.plans.options import Options
from echo.plans.plan import Plan

_NUMBERS = r"(0|[1-9][0-9]{0,8})(,(0|[1-9][0-9]{0,8}))*"
_APART = r"\w+:[0-9]{1,5}>[0-9]{1,5}(,[0-9]{1,5}>[0-9]{1,5})*"
_VALUES = {
    "hook": {
        PLAN_ATTRIBUTE: re.compile(f"{_NUMBERS}(@{_NUMBERS})?"),
        RANGE_ATTRIBUTE: re.compile(r"-1s?|0|[1-9][0-9]{0,8}"),
        GRADIENT_ATTRIBUTE: re.compile(r"[^\x00]+"),  # one of few, looked up below
        NO_INPLACE_ATTRIBUTE: re.compile(f"{_APART}(;{_APART})*"),
    },
    "mirror": {MIRROR_ATTRIBUTE: re.compile(r"True")},
    "none": {},
}
_ANY = TensorType((1,), 0)


def with_marks(graph: Graph, plan: Plan, framework: Framework) -> Graph:
    """The graph with the marks of a plan, which are checked against the graph alone; that takes no bind.

    Raises:
        GraphError: a mark that no plan for this graph has.
    """
    checked: set[tuple[Any, ...]] = set()  # most marks are equal to others, on equal nodes
    for mark in plan.marks:
        node = _node_of(graph, mark)
        count = graph.num_outputs(mark.node)
        mark_and_node = (mark.op, count, len(mark.attrs), *mark.attrs.items(), *node.attrs, *node.attrs.values())
        if mark_and_node not in checked:
            _check(node, mark, count, plan, framework)
            checked.add(mark_and_node)
    if not _ascend([mark.node for mark in plan.marks]):
        raise GraphError("marks: expected one for a node, in the order of their numbers")
    _check_ranges(graph, plan)
    return graph.with_attrs({mark.node: mark.attrs for mark in plan.marks})


def _node_of(graph: Graph, mark: Mark) -> Node:
    if not 0 <= mark.node < len(graph.nodes):
        raise GraphError(f"marks: there is no node {mark.node}, expected one below {len(graph.nodes)}")
    node = graph.nodes[mark.node]
    if node.op != mark.op or node.is_variable:
        raise GraphError(f"marks: expected node {mark.node} to be an operator {mark.op}, got {node.op} ({node.name!r})")
    return node


def _check(node: Node, mark: Mark, count: int, plan: Plan, framework: Framework) -> None:
    where, values = f"marks: node {mark.node} ({node.name!r})", _VALUES[plan.applied]
    if not mark.attrs:
        raise GraphError(f"{where}: expected attributes, got none")
    for name, text in mark.attrs.items():
        if name not in values or not values[name].fullmatch(text):
            raise GraphError(f"{where} cannot have the attribute {name!r} = {text!r}, applied by {plan.applied!r}")
    if PLAN_ATTRIBUTE in mark.attrs or MIRROR_ATTRIBUTE in mark.attrs:
        _check_outputs(node, mark, count, framework)
    gradient = mark.attrs.get(GRADIENT_ATTRIBUTE)
    if gradient is None:
        return
    rule = next((rule for rule in known(node.op, node.attrs) if rule.text == gradient), None)
    if rule is None:
        raise GraphError(f"marks: no gradient of {node.op} ({node.name!r}) is {gradient!r}")


def _check_outputs(node: Node, mark: Mark, count: int, framework: Framework) -> None:
    """Raises unless the node may be recomputed, and gradients may read these outputs from its copy."""
    where, hook = f"marks: node {mark.node} ({node.name!r})", PLAN_ATTRIBUTE in mark.attrs
    stand_in = TrainingNode(node.op, node.name, (_ANY,) * max(1, count), attrs=node.attrs)
    reason = why_not_recomputable(stand_in, framework.device, hook)
    if reason:
        raise GraphError(f"{where} cannot be recomputed: {reason}")
    outputs, splits = outputs_of(mark), splits_of(mark)
    if not _ascend(outputs) or not set(outputs) <= set(all_outputs(stand_in, hook)):
        few = ", ".join(map(str, all_outputs(stand_in, hook)))
        raise GraphError(f"{where}: expected outputs of {few}, ascending, got {mark.attrs.get(PLAN_ATTRIBUTE)!r}")
    if not _ascend(splits) or splits == (0,):
        raise GraphError(f"{where}: expected ascending positions, got {mark.attrs[PLAN_ATTRIBUTE]!r}")


def _ascend(numbers: Sequence[int]) -> bool:
    return all(number < following for number, following in zip(numbers, numbers[1:]))


def _check_ranges(graph: Graph, plan: Plan) -> None:
    """Raises unless the plan's match range is at each mark, or at every operator if nothing is recomputed."""
    runner, match_range = plan.key.runner, plan.match_range
    offered = {
        None,
        *MATCH_RANGES,
        *([StorageStrategy.ASSIGNED] if runner != Runner.DYNAMIC and plan.applied != "mirror" else []),
    }
    if match_range not in offered:
        raise GraphError(f"match_range: no plan for such a graph has {match_range}")
    if plan.applied == "mirror":  # the environment sets the match range when the graph is bound
        return
    again = [mark.node for mark in plan.marks if PLAN_ATTRIBUTE in mark.attrs]
    operators = [number for number, node in enumerate(graph.nodes) if not node.is_variable and node.takes_attrs]
    marked = set() if match_range is None or plan.applied == "none" else set(again or operators)
    text = None if match_range is None else range_text(match_range, runner.keeps_memory)
    for mark in plan.marks:
        got = mark.attrs.get(RANGE_ATTRIBUTE)
        if got != (text if mark.node in marked else None):
            raise GraphError(f"marks: node {mark.node}: expected the plan's match range, got {got!r}")
    already = {number for number in operators if RANGE_ATTRIBUTE in graph.nodes[number].attrs}
    missing = sorted(marked - {mark.node for mark in plan.marks} - already)
    if missing:
        raise GraphError(f"marks: node {missing[0]} lacks the plan's match range")


def check_marks(graph: Graph, plan: Plan, framework: Framework) -> None:
    """Checks marks that passed `with_marks` against the training graph that MXNet makes of ``graph``.

    Raises:
        GraphError: a mark that no plan for this graph has.
    """
    attrs = {mark.node: mark.attrs for mark in plan.marks}
    training = framework.differentiate()
    if framework.hook:
        training = as_stock(training, framework.device)
    for duplicate, number in common_subexpressions(graph, training).items():
        if attrs.get(duplicate) != attrs.get(number):
            raise GraphError(f"marks: MXNet merges nodes {number} and {duplicate}, expected equal marks")
    texts = {mark.node: mark.attrs[GRADIENT_ATTRIBUTE] for mark in plan.marks if GRADIENT_ATTRIBUTE in mark.attrs}
    _check_gradients(graph, training, texts, framework)
    present = {node.original for node in training.nodes}
    rules = {number: GradientRule.parse(text) for number, text in texts.items() if number in present}
    changed = framework.apply_gradient_rules(training, rules) if rules else training
    displaced = sorted(displacing(training, changed, framework.device)) if framework.hook else []
    if displaced:
        raise GraphError(f"marks: with the gradient rule of node {displaced[0]}, an operator next to it would not "
                         "work in place as it does in the original graph, which may change last bits")  # fmt: skip
    _check_recomputed(graph, changed, plan, framework)
    late = shape_only_hazard(graph, changed, framework.device)
    if late and plan.match_range != StorageStrategy.ASSIGNED:
        raise GraphError(f"match_range: {late!r} may find another array in the memory of an input of which it reads "
                         f"the shape, expected {StorageStrategy.ASSIGNED}, got {plan.match_range}")  # fmt: skip
    if framework.hook:
        _check_in_place(graph, changed, plan, framework.device)


def _check_recomputed(graph: Graph, training: TrainingGraph, plan: Plan, framework: Framework) -> None:
    """Raises unless each marked output is a candidate, and each copy begins at a backward node that exists."""
    offered = _offered(graph, training, FindCandidates().run(Request(graph, Options(), framework), training))
    backward = len(training.backward)
    for mark in plan.marks:
        outputs = outputs_of(mark)
        reason, entries = offered.get(mark.node, ("it is not in the training graph", ()))
        if outputs and not set(outputs) <= set(entries):
            why = reason or f"outputs {entries} may be"
            raise GraphError(f"marks: node {mark.node} ({graph.nodes[mark.node].name!r}) cannot be recomputed: {why}")
        if max(splits_of(mark), default=0) >= max(1, backward):
            raise GraphError(f"marks: node {mark.node}: expected positions below {backward}, got {splits_of(mark)}")


def _check_in_place(graph: Graph, training: TrainingGraph, plan: Plan, device: str) -> None:
    """Raises unless operators work in place where they do in the original graph (`echo.estimators.inplace`)."""
    attrs = {mark.node: mark.attrs for mark in plan.marks}
    changes = any(PLAN_ATTRIBUTE in mark.attrs or GRADIENT_ATTRIBUTE in mark.attrs for mark in plan.marks)
    expected_marks = on_equal_nodes(graph, training, NO_INPLACE_ATTRIBUTE, training.no_inplace) if changes else {}
    for number in {*attrs, *expected_marks}:
        got, expected = (marks.get(number, {}).get(NO_INPLACE_ATTRIBUTE) for marks in (attrs, expected_marks))
        if got != expected:
            raise GraphError(f"marks: node {number}: expected {expected!r} in {NO_INPLACE_ATTRIBUTE}, got {got!r}")
    refused = sorted(moved(training, device, *recomputed_in(training, plan.marks)))
    if refused:
        raise GraphError(f"marks: with {training.nodes[refused[0]].name!r} recomputed, an operator next to it would "
                         "not work in place as it does in the original graph, which may change last bits")  # fmt: skip


def _offered(graph: Graph, training: TrainingGraph, candidates: Candidates) -> dict[int, tuple[str, tuple[int, ...]]]:
    """For each node of the graph: why it is not to be recomputed, or the outputs that may be recomputed."""

    def verdicts() -> Iterator[tuple[int | None, tuple[str, tuple[int, ...]]]]:
        for entries_of in (candidates.light, candidates.heavy):
            for number, entries in entries_of.items():
                yield training.nodes[number].original, ("", tuple(entry.index for entry in entries))
        for number, reason in candidates.refused.items():
            yield training.nodes[number].original, (reason, ())

    offered = {original: verdict for original, verdict in verdicts() if original is not None}
    duplicates = common_subexpressions(graph, training).items()
    return {**offered, **{duplicate: offered[number] for duplicate, number in duplicates if number in offered}}


def _check_gradients(graph: Graph, training: TrainingGraph, texts: Mapping[int, str], framework: Framework) -> None:
    """Raises unless each gradient rule of the plan holds here: that depends on types, and on how MXNet computes."""
    if not texts:
        return
    ways = (frozenset(), copied(training, framework.device)) if framework.hook else ()
    in_place = over_first_input(framework.differentiate(), framework.device)
    allowed = [gradient_rules(training, framework.onednn, entries, framework.cudnn, in_place) for entries in ways]
    marks = [gradient_marks(graph, training, marks_of_way) for marks_of_way in allowed]
    for number, text in texts.items():
        if all(marks_of_way.get(number, {}).get(GRADIENT_ATTRIBUTE) != text for marks_of_way in marks):
            name = graph.nodes[number].name
            raise GraphError(f"the plan has the gradient of {name!r} computed by {text!r}, which does not hold for its "
                             "type, or for the way in which this MXNet computes it")  # fmt: skip
