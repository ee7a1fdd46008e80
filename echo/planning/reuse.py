"""Plans that were made before and come from the disk or the user: each is checked against the graph it is bound to."""

from __future__ import annotations

from typing import Iterator, Sequence

from echo.errors import GraphError, PlanError
from echo.ir.graph import Graph
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import Candidates, Differentiate, FindCandidates
from echo.passes.check_marks import check_marks, with_marks
from echo.passes.pass_manager import run
from echo.passes.patterns.apply import fused_at
from echo.passes.request import Frontend, Request
from echo.plans.decisions import outputs_of, splits_of
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.policies.problem import WarmStart

_SHAPES = ". A plan holds for its own shapes and types alone: another batch size or length needs its own, by echo.plan"


def fused_base(plan: Plan, graph: Graph, frontend: Frontend) -> Graph:
    """The user's graph with the fused operators of a plan, which may come from anywhere.

    Raises:
        GraphError: the fused operators do not fit the graph, or cannot run here.
    """
    if not plan.fused:
        return graph
    if frontend.why_no_fusion:
        raise GraphError(f"the plan has fused operators: {frontend.why_no_fusion}")
    return frontend.runnable(fused_at(graph, plan.fused, frontend.adds, frontend.setting))


def fitting(plans: Sequence[Plan], graph: Graph, frontend: Frontend) -> tuple[Plan, Graph, Graph]:
    """The first of these plans that was made for this graph as it is bound now, the graph to bind, and its base.

    The base is the same graph without marks. MXNet's own planner has to plan as many bytes as when the plan was made.

    Raises:
        PlanError: there is none; the message says in what the closest one differs.
    """
    mismatches = []
    for plan in plans:
        differences = list(_differences(plan, frontend))
        if not differences:
            return (plan, *_confirmed(plan, graph, frontend))
        mismatches.append(differences)
    closest = min(mismatches, key=len)
    few = "; ".join(closest[:4]) + (f"; and {len(closest) - 4} more" if len(closest) > 4 else "")
    which = "the plan was" if len(plans) == 1 else f"each of the {len(plans)} plans was"
    hint = _SHAPES if any(": expected shape " in text for text in closest) else ""
    raise PlanError(f"{which} made for something else; {few}{hint}")


def _differences(plan: Plan, frontend: Frontend) -> Iterator[str]:
    if plan.subject != frontend.subject:
        yield from plan.subject.differences(frontend.subject, frontend.argument_names())
    way = "hook" if frontend.hook else "mirror"
    if plan.applied not in ("none", way):
        yield f"applied by: expected {plan.applied}, got {way}"


def _confirmed(plan: Plan, user: Graph, frontend: Frontend) -> tuple[Graph, Graph]:
    if plan.changes_nothing:
        return user, user
    default_range = frontend.match_range
    match_range = default_range if plan.match_range is None else plan.match_range
    try:
        graph = fused_base(plan, user, frontend)
        marked = with_marks(graph, plan, frontend)
        frontend = frontend.on(graph)
        check_marks(graph, plan, frontend)
        planned, accumulations = frontend.oracle(marked, match_range)
    except GraphError as error:
        raise PlanError(f"the plan does not fit the graph that it names: {error}") from error
    if planned != plan.after.planned:
        raise PlanError(f"the plan is not what MXNet makes of it: expected {plan.after.planned:,} bytes planned, "
                        f"got {planned:,}")  # fmt: skip
    if accumulations != frontend.oracle(graph, default_range)[1]:
        raise PlanError("under this plan MXNet adds up gradients in another way, which may change the last bit")
    return marked, graph


def warm_start_of(base: Graph, plan: Plan, options: Options, frontend: Frontend) -> WarmStart:
    """Returns the warm start that a plan's marks give: what it recomputes, and the backward nodes where copies begin.

    ``base`` is the graph with the plan's fused operators, ``frontend`` the frontend of that graph.

    Raises:
        EchoError: the graph cannot be differentiated.
    """
    request = Request(base, options, frontend)
    values = run((Differentiate(), FindCandidates()), [request], request.progress)
    training, candidates = values[TrainingGraph], values[Candidates]
    number_of = {node.user: number for number, node in training.operators() if node.forward}
    backward = [number for number, node in training.operators() if not node.forward]
    again = {number_of[mark.node]: mark for mark in plan.marks if outputs_of(mark) and mark.node in number_of}
    offered = {**candidates.light, **candidates.heavy}
    # a copy that is read by the whole backward pass begins at its first node
    splits = {number: tuple(backward[at] for at in splits_of(mark) or (0,)) for number, mark in again.items()}
    return WarmStart.of(training, offered, again.keys(), splits)
