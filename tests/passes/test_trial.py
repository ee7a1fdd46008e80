"""Between graphs: the most fused one that needs hardly more than the least, and the budget that is missed by least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from echo.errors import BudgetError
from echo.ir.graph import Entry, Graph, Node
from echo.passes.patterns.apply import Fused
from echo.passes.rules import RULES
from echo.passes.trial import Trial, choose

GRAPH = Graph((Node("null", "x"),), (Entry(0),), (0,), (0, 1))


def memory(planned: int, workspaces: int = 0) -> Any:
    total = planned + 100 + workspaces
    return SimpleNamespace(planned=planned, total=total, chosen=planned, workspaces=workspaces)


def trial(
    planned: int, operators: int = 0, hidden: int = 0, stock: int = 1000, workspaces: int = 0, seconds: float = 0.0
) -> Trial:
    """A trial, whose operators were measured where ``seconds`` are given."""
    fused = Fused(GRAPH, tuple(("lstm_cell", number) for number in range(operators)), hidden=hidden)
    made = SimpleNamespace(
        after=memory(planned, workspaces), step_seconds=0.9 * seconds, overhead_seconds=0.1 * seconds
    )
    plan: Any = SimpleNamespace(plan=made, timed=bool(seconds))
    return Trial(fused, memory(stock) if operators else None, plan)


def missing(reachable: int) -> Trial:
    return Trial(Fused(GRAPH), None, None, BudgetError(10, reachable, "weights"))


def request(budget: float | None = None) -> Any:
    return SimpleNamespace(options=SimpleNamespace(memory_budget=budget))


@pytest.mark.parametrize(
    ("more", "part", "first"),
    [
        (RULES.slack - 0.01, 0.0, True),  # nobody knows the times
        (RULES.slack + 0.01, 0.0, False),
        (RULES.slack - 0.01, RULES.faster - 0.01, True),
        (RULES.slack + 0.01, RULES.faster - 0.01, False),
        (RULES.slack - 0.01, RULES.faster + 0.01, False),
        (RULES.more - 0.01, RULES.faster + 0.01, True),
        (RULES.more - 0.01, 1.01, False),  # slower, and not smaller
        (1.0, 1.01, False),
        (0.99, 2.0, True),  # slower, and smaller
    ],
)
def test_the_most_fused_graph_may_need_a_little_more(more: float, part: float, first: bool) -> None:
    one = Fused(GRAPH).graph.nodes[0].name
    trials = [trial(int(more * 1000) - 100, 1, seconds=part), trial(900, seconds=1.0)]
    chosen = choose(trials, GRAPH)
    if first:
        assert chosen is trials[0]
        return
    assert chosen.planned is trials[1].planned
    (left,) = chosen.fused.missed
    assert (left.name, left.pattern) == (one, "lstm_cell")
    times = f", and {part:.2f} of the time" if part else ""
    assert left.reason == f"{int(more * 1000) / 1000:.2f} times the memory of the plan without it{times}"


@pytest.mark.parametrize(
    ("planned", "part", "first"),
    [(900, RULES.drawing - 0.01, True), (901, RULES.drawing - 0.01, False), (900, RULES.drawing + 0.01, False)],
)
def test_a_graph_that_is_larger_by_workspaces_alone_may_be_less_much_faster(
    planned: int, part: float, first: bool
) -> None:
    drawn = RULES.workspace + 150
    trials = [trial(planned, 1, workspaces=drawn, seconds=part), trial(900, seconds=1.0)]
    assert (choose(trials, GRAPH) is trials[0]) == first


def test_times_of_short_steps_do_not_decide() -> None:
    """They are noise: the graph with the most fused operators is taken, as where nothing was measured."""
    assert choose([trial(900, 1, seconds=2e-4), trial(900, seconds=1e-4)], GRAPH).fused.places
    assert not choose([trial(900, 1, seconds=2e-2), trial(900, seconds=1e-2)], GRAPH).fused.places


def test_what_operators_hold_beyond_what_is_planned_counts() -> None:
    """The fused graph plans more, and does away with what the user's operators hold inside."""
    trials = [trial(1900, 1, hidden=900), trial(1100)]
    assert choose(trials, GRAPH) is trials[0]
    assert choose([trial(1900, 1), trial(1100)], GRAPH).fused.places == ()


def test_a_graph_that_misses_the_budget_is_not_chosen() -> None:
    trials = [missing(20), trial(900)]
    assert choose(trials, GRAPH) is trials[1]


def test_the_budget_that_is_missed_by_least_is_told() -> None:
    trials = [missing(30), missing(20), missing(25)]
    chosen = choose(trials, GRAPH)
    assert chosen.fused is trials[0].fused
    with pytest.raises(BudgetError) as caught:
        chosen.result(request())
    assert caught.value.reachable == 20
    assert chosen.unrefined(Fused(GRAPH), BudgetError(10, 15, "weights")).missed.reachable == 15  # type: ignore[union-attr]


def test_what_is_enough() -> None:
    little = int(RULES.enough * 1000)
    assert trial(little, 1).is_enough(request())
    assert not trial(little + 1, 1).is_enough(request())
    assert trial(little + 1, 1).is_enough(request(0.9)), "whatever keeps a budget is"
    assert not trial(little).is_enough(request()), "the user's own graph is the last anyway"
    assert not missing(20).is_enough(request(0.9))


def test_workspaces_may_eat_what_is_saved() -> None:
    """Then graphs with less fused operators are planned too, and one of those may be taken."""
    few = RULES.workspace
    layers, cells = trial(300, 1, workspaces=few + 500), trial(350, 9)
    assert trial(300, 1, workspaces=few + 50).is_enough(request())
    assert not layers.is_enough(request())
    assert choose([layers, cells], GRAPH).planned is cells.planned
    assert choose([trial(300, 1, workspaces=few), cells], GRAPH).fused.places == trial(300, 1).fused.places
    assert trial(300, 1, workspaces=few + 701).is_larger
    assert not trial(300, 1, workspaces=few + 700).is_larger


def test_larger_than_the_users_own() -> None:
    assert trial(1001, 1).is_larger
    assert not trial(1000, 1).is_larger
    assert not trial(5000).is_larger
