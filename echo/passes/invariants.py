"""``ECHO_CHECK=1``: the rules that the values of the pipeline keep, checked after each stage; always in the tests.

A stage that breaks a rule fails, as with any other error: its plan is left out, and the user's training goes on. Graphs
and training graphs also check themselves where they are made; code that skips these checks is caught here.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Mapping

from echo.errors import EchoError
from echo.estimators.overhead import Overhead
from echo.ir import graph as graphs
from echo.ir.graph import Entry, Graph, Node
from echo.ir.schedule import with_clones
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import check_nodes
from echo.passes.candidates import Candidates
from echo.passes.confirm import Confirmed
from echo.passes.layouts import Batched
from echo.passes.masks import Masked
from echo.passes.patterns.apply import Fused
from echo.passes.request import Request
from echo.passes.rewrite import Rewritten
from echo.passes.select import Selection
from echo.plans.plan import Plan
from echo.policies.problem import Segments


@functools.singledispatch
def check(value: Any, before: Mapping[type, Any]) -> None:
    """Checks the value of a stage by its rules, and against the values of the stages ``before``, by their types.

    Raises:
        EchoError: a rule is broken; the message says which, and where.
    """


@check.register(Fused)
def _(fused: Fused, before: Mapping[type, Any]) -> None:
    user: Graph = before[Request].graph
    graphs.check(fused.graph)
    _expect(len(fused.graph.heads) == len(user.heads), f"{len(user.heads)} outputs, got {len(fused.graph.heads)}")
    expected, got = user.variable_names, fused.graph.variable_names
    _expect(got == expected, f"the variables {expected}, got {got}")


@check.register(Masked)
@check.register(Batched)
def _(value: Masked | Batched, before: Mapping[type, Any]) -> None:
    if value.fused is not None:
        check(value.fused, before)


@check.register(TrainingGraph)
def _(training: TrainingGraph, before: Mapping[type, Any]) -> None:
    check_nodes(training.nodes)
    nodes = before[Request].graph.nodes
    for number, node in training.operators():
        is_operator = node.user is None or (0 <= node.user < len(nodes) and not nodes[node.user].is_variable)
        _expect(is_operator, f"node {number} ({node.name!r}) to stand for an operator of the user's, got {node.user}")


@check.register(Candidates)
def _(candidates: Candidates, before: Mapping[type, Any]) -> None:
    training: TrainingGraph = before[TrainingGraph]
    forward = {number for number, node in training.operators() if node.forward}
    insisted = {entry.node for entry in candidates.forced}
    verdicts = [set(candidates.light), set(candidates.heavy), set(candidates.refused), insisted]
    _expect(set().union(*verdicts) == forward, "a verdict on each forward operator, and on nothing else")
    _expect(sum(map(len, verdicts)) == len(forward), "one verdict on each forward operator")
    for number, entries in (*candidates.light.items(), *candidates.heavy.items()):
        _expect(all(entry.node == number for entry in entries), f"outputs of node {number}, got {entries}")
    for entry in _offered(candidates):
        there = 0 <= entry.index < len(training.nodes[entry.node].outputs)
        _expect(there, f"an output of node {entry.node}, got {tuple(entry)}")


@check.register(Segments)
def _(segments: Segments, before: Mapping[type, Any]) -> None:
    numbers = [number for segment in segments.segments for number in segment.nodes]
    _expect(sorted(numbers) == sorted(before[Candidates].light), "each light candidate in one segment")


@check.register(Overhead)
def _(overhead: Overhead, before: Mapping[type, Any]) -> None:
    count = len(before[TrainingGraph].nodes)
    _expect(len(overhead.seconds) == count, f"seconds of {count} nodes, got {len(overhead.seconds)}")
    for number, seconds in enumerate(overhead.seconds):
        _expect(math.isfinite(seconds) and seconds >= 0, f"seconds of node {number}, got {seconds}")


@check.register(Selection)
def _(selection: Selection, before: Mapping[type, Any]) -> None:
    training, candidates = before[TrainingGraph], before[Candidates]
    offered = _offered(candidates)
    _expect(selection.recompute <= offered, "recomputed maps to be among the candidates")
    _expect(candidates.forced <= selection.recompute, "what the user insists on to be recomputed")
    _expect(set(selection.runs) <= {entry.node for entry in offered}, "only candidates to run again")
    _expect(all(times > 0 for times in selection.runs.values()), "what runs again to do so once or more")
    with_clones(training, selection.recompute, selection.splits)  # every reader finds what it reads, before it


@check.register(Rewritten)
def _(rewritten: Rewritten, before: Mapping[type, Any]) -> None:
    user: Graph = before[Request].graph
    graphs.check(rewritten.graph)
    _expect(rewritten.graph.heads == user.heads, "the user's outputs")
    _expect(len(rewritten.graph.nodes) == len(user.nodes), f"{len(user.nodes)} nodes, got {len(rewritten.graph.nodes)}")
    for number, (node, base) in enumerate(zip(rewritten.graph.nodes, user.nodes)):
        _expect(_is_marked(node, base), f"node {number} ({base.name!r}) as the user made it, but for added attributes")


@check.register(Confirmed)
def _(confirmed: Confirmed, before: Mapping[type, Any]) -> None:
    stock, needed = before[TrainingGraph].planned_bytes, confirmed.planned_bytes + confirmed.kept_bytes
    insists = before[Request].options.recompute
    _expect(insists or needed <= stock, f"no more than the {stock:,} bytes of the graph without a plan, got {needed:,}")


@check.register(Plan)
def _(plan: Plan, _: Mapping[type, Any]) -> None:
    places = [(decision.name, decision.node, decision.output) for decision in plan.decisions]
    _expect(len(places) == len(set(places)), "one decision on each feature map")
    changed = plan.marks or plan.recomputed
    _expect(not (plan.changes_nothing and changed), "nothing recomputed in the user's own graph")


def _expect(holds: object, rule: str) -> None:
    if not holds:
        raise EchoError(f"expected {rule}")


def _offered(candidates: Candidates) -> frozenset[Entry]:
    entries = itertools.chain(*candidates.light.values(), *candidates.heavy.values())
    return candidates.forced.union(entries)


def _is_marked(node: Node, base: Node) -> bool:
    same = (node.op, node.name, node.inputs, node.control_deps) == (base.op, base.name, base.inputs, base.control_deps)
    return same and base.attrs.items() <= node.attrs.items()
