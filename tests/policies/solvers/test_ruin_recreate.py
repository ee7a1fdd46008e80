"""Schedules by ruin and recreate: within what is asked for, never worse than where they begin."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from functools import partial

import pytest

from echo.errors import NativeError
from echo.estimators.scheduler import CHUNKS, LIVE, Scheduler
from echo.ir.schedule import RecomputeSchedule
from echo.policies import RecomputeNone
from echo.policies.data_graph import DataGraph, problem_of_graph
from echo.policies.solvers import ruin_recreate
from echo.policies.solvers.ruin_recreate import GreedyKeep, RuinRecreate, can_fit
from echo.system.process import Deadline
from tests.support.data_graphs import chain, random_graph, unrolled
from tests.support.planning import calls_of


@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_a_budget_is_kept_in_less_time_than_everything_takes(share: float) -> None:
    graph = chain(40)
    budget = int(share * graph.training.planned_bytes / 2)
    problem = problem_of_graph(*graph, max_bytes=budget)
    found = problem.value(RuinRecreate().choose(problem))
    assert found.bytes <= budget
    assert found.seconds < problem.value(problem.splits(problem.candidates)).seconds


def test_schedule_without_budget_is_the_smallest_within_its_seconds() -> None:
    graph = unrolled(4)
    free = problem_of_graph(*graph, heavy=False)
    smallest = free.value(RuinRecreate().choose(free))
    bounded = problem_of_graph(*graph, heavy=False, max_seconds=0.5 * smallest.seconds)
    found = bounded.value(RuinRecreate().choose(bounded))
    assert found.seconds <= 0.5 * smallest.seconds
    assert smallest.bytes <= found.bytes < free.value({}).bytes


def test_schedule_is_never_worse_than_its_start() -> None:
    problem = problem_of_graph(*chain(40), simulations=1)
    start = RuinRecreate().choose(problem_of_graph(*chain(40)))
    found = RuinRecreate((start,), share=0.0).choose(problem)
    assert problem.rank(problem.value(found)) <= problem.rank(problem.value(start))


def test_problem_it_cannot_solve_gives_no_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    once = problem_of_graph(*chain(10), once=True)
    assert not can_fit(once)
    assert RuinRecreate().choose(once) == {}

    def missing(*_: object) -> None:
        raise NativeError("not built")

    monkeypatch.setattr(ruin_recreate, "scheduler_of", missing)
    assert RuinRecreate().choose(problem_of_graph(*chain(10))) == {}


MEASURES = pytest.mark.parametrize("measure", [LIVE, CHUNKS])


def all_dropped(seed: int) -> tuple[DataGraph, RecomputeSchedule]:
    graph = random_graph(seed, random.Random(seed).randint(4, 40))
    backward = [number for number, node in graph.training.operators() if not node.forward]
    forward = [number for number, node in graph.training.operators() if node.forward]
    schedule = {number: (backward[0], backward[len(backward) // 2]) for number in forward[:-1]}
    return graph, schedule


@MEASURES
def test_kept_splits_fit_the_budget_and_save_time(measure: int) -> None:
    """Of splits that are there some stay, within any budget that they fit; the value is that of what is left."""
    kept = 0
    for seed in range(120):
        graph, start = all_dropped(seed)
        scheduler = Scheduler(*graph, measure)
        before, stock = scheduler.simulate(start), scheduler.simulate({})
        for part in (0.0, 0.5, 1.0):
            budget = int(before.bytes + part * max(0, stock.bytes - before.bytes))
            schedule, value = scheduler.keep(start, budget)
            assert value.bytes <= budget, f"seed {seed}"
            assert value.seconds <= before.seconds, f"seed {seed}"
            assert value == scheduler.simulate(schedule), f"seed {seed}"
            assert all(set(positions) <= set(start[node]) for node, positions in schedule.items()), f"seed {seed}"
            assert scheduler.keep(start, budget) == (schedule, value), f"seed {seed}: two runs differ"
            kept += value.seconds < before.seconds
    assert kept > 240


@MEASURES
def test_roomy_budget_keeps_few_splits(measure: int) -> None:
    recomputed = total = 0.0
    for seed in range(120):
        graph, start = all_dropped(seed)
        scheduler = Scheduler(*graph, measure)
        budget = max(scheduler.simulate(start).bytes, 2 * scheduler.simulate({}).bytes)
        recomputed += scheduler.keep(start, budget)[1].seconds
        total += scheduler.simulate(start).seconds
    assert recomputed < 0.01 * total


def test_a_budget_that_the_start_does_not_keep_changes_nothing() -> None:
    graph, start = all_dropped(3)
    scheduler = Scheduler(*graph)
    value = scheduler.simulate(start)
    assert scheduler.keep(start, value.bytes - 1) == (start, value)


def test_a_chain_costs_one_more_forward_pass() -> None:
    for length in (100, 400, 900):
        problem = problem_of_graph(*chain(length), max_bytes=2 * math.isqrt(length) + 4)
        value = problem.value(GreedyKeep().choose(problem))
        assert value.bytes <= 2 * math.isqrt(length) + 4
        assert value.seconds <= 1.25 * length


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_heavy_operators_run_again_as_far_as_the_budget_wants(part: float) -> None:
    """Of an LSTM that stashes its gates, about the part of the products that the budget has no room for."""
    steps = 200
    problem = problem_of_graph(*unrolled(steps))
    stock, least = problem.value(RecomputeNone().choose(problem)).bytes, 4096 * 2 * math.isqrt(2 * steps)
    problem = replace(problem, max_bytes=int(least + part * (stock - least)))
    value = problem.value(GreedyKeep().choose(problem))
    assert problem.max_bytes is not None
    assert value.bytes <= problem.max_bytes
    light = sum(second for second in problem.costs.seconds if second < 1e-4)
    assert value.seconds <= light + 1e-4 * steps * (1 - part)


def test_kept_values_at_a_deadline_take_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of_graph(*unrolled(50))
    stock = problem.value({}).bytes
    problem = replace(problem, max_bytes=stock // 2)
    keep, passes = Scheduler.keep, []
    monkeypatch.setattr(Scheduler, "keep", lambda *given: passes.append(1) or keep(*given))
    assert problem.value(GreedyKeep().choose(problem)).bytes <= stock // 2
    at_leisure = len(passes)
    late = replace(problem, deadline=Deadline(1.0, time.monotonic(), 1.0))
    assert problem.value(GreedyKeep().choose(late)).bytes < stock
    assert len(passes) - at_leisure <= 2 < at_leisure


@pytest.mark.slow
def test_work_grows_with_the_graph() -> None:
    work = []
    for steps in (100, 400, 1600):
        problem = problem_of_graph(*unrolled(steps))
        problem = replace(problem, max_bytes=problem.value({}).bytes // 4)
        choice, calls = calls_of(partial(GreedyKeep().choose, problem))
        work.append(calls)
        value = problem.value(choice)
        assert problem.max_bytes is not None
        assert value.bytes <= problem.max_bytes
    assert work[2] < 5 * work[1]
