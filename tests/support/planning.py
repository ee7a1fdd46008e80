"""The other inputs of planning, without the graph: invented costs, problems for policies, other graphs."""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterable

import numpy as np
import pytest

from echo.estimators.cost_model import CostModel
from echo.estimators.storage_planner import RecomputeMask, ReferencePlanner, StoragePlanner
from echo.ir.graph import Entry, Graph
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.planning.planner import Planner
from echo.planning.reuse import PlannedGraph
from echo.policies.problem import Problem, partition
from tests.support.cases import recomputable


def plan_other_graphs(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Graph], Graph]) -> None:
    """Every plan from now on is bound with what ``changed`` makes of its graph."""

    def changing(original: Callable[..., PlannedGraph | None]) -> Callable[..., PlannedGraph | None]:
        def called(*args: Any, **kwargs: Any) -> PlannedGraph | None:
            found = original(*args, **kwargs)
            return None if found is None else found._replace(graph=changed(found.graph))

        return called

    for name in ("plan", "follow"):
        monkeypatch.setattr(Planner, name, changing(getattr(Planner, name)))


def calls_of(action: Callable[[], Any]) -> tuple[Any, int]:
    """The result of an action, and the number of functions that it called, which is the same on every machine."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = action()
    finally:
        sys.setprofile(before)
    return result, calls


def choice_of(training: TrainingGraph, entries: Iterable[Entry]) -> RecomputeMask:
    """These entries as the evaluators want them."""
    choice = np.zeros(training.first_entry[-1], np.uint8)
    choice[[training.entry_id(entry) for entry in sorted(entries)]] = 1
    return choice


def costs_of(training: TrainingGraph, second: float = 1e-3) -> CostModel:
    """Every operator takes as long as any other."""
    seconds = tuple(0.0 if node.is_variable else second for node in training.nodes)
    return CostModel(seconds, sum(seconds), len(training.nodes), 0)


def problem_of(
    training: TrainingGraph,
    costs: CostModel | None = None,
    planner: type[StoragePlanner] | type[ReferencePlanner] = StoragePlanner,
    **limits: Any,
) -> Problem:
    """The problem of a policy for a training graph: all light operators are candidates."""
    costs = costs or costs_of(training)
    heads = {entry.node for entry in training.outputs}
    candidates = {
        number: entries
        for number, entries in recomputable(training).items()
        if not spec(training.nodes[number].op).cost.heavy and number not in heads
    }
    return Problem(
        **{
            "training": training,
            "costs": costs,
            "evaluator": planner(training, costs.seconds),
            "candidates": candidates,
            "segments": partition(training, candidates),
            "must_recompute": frozenset(),
            "match_ranges": (16, 1, 2, 4),
            **limits,
        }
    )
