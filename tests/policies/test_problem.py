"""Segments are the connected groups of candidates between operators that do not run twice."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Sequence

import networkx as nx
import numpy as np
import pytest

from echo.estimators.storage_planner import Evaluation
from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import Runner, StorageStrategy
from echo.passes.analysis import Candidates, Partition
from echo.policies.data_graph import problem_of_graph
from echo.policies.problem import CandidateSegment, Problem, Segments, partition, run_with_deadline
from echo.system.process import Deadline, DeadlineExceeded
from tests.support.cases import ALL_CASES, any_case, recomputable
from tests.support.data_graphs import chain
from tests.support.made_graphs import Builder, CountedGraph, diamonds
from tests.support.planning import problem_of


def groups(segments: Segments) -> list[tuple[int, ...]]:
    return [segment.nodes for segment in segments.segments]


def test_heavy_operators_part() -> None:
    b = Builder()
    x, w = b.variable("x", 4, 4), b.variable("w", 4, 4)
    first = b.forward("tanh", "first", (4, 4), x)  # 2
    second = b.forward("exp", "second", (4, 4), first)  # 3
    heavy = b.forward("dot", "heavy", (4, 4), second, w)  # 4
    third = b.forward("tanh", "third", (4, 4), heavy)  # 5
    side = b.forward("exp", "side", (4, 4), first)  # 6
    last = b.forward("elemwise_add", "last", (4, 4), third, heavy)  # 7
    training = b.graph([last, side])
    light = {number: (Entry(number),) for number in (2, 3, 5, 6, 7)}
    assert groups(partition(training, light)) == [(2, 3, 6), (5, 7)]
    everything = {**light, 4: (Entry(4),)}
    assert groups(partition(training, everything)) == [(2, 3, 4, 5, 6, 7)]


def test_a_node_alone_is_a_segment() -> None:
    b = Builder()
    x = b.variable("x", 4)
    b.forward("tanh", "left", (4,), x)
    b.forward("tanh", "right", (4,), x)  # a shared variable connects nothing
    training = b.graph([Entry(1), Entry(2)])
    assert groups(partition(training, {1: (Entry(1),), 2: (Entry(2),)})) == [(1,), (2,)]


def test_no_candidates_no_segments() -> None:
    b = Builder()
    assert partition(b.graph([b.variable("x", 4)]), {}) == Segments(())


def test_stacked_diamonds_take_as_many_visits_as_they_have_nodes() -> None:
    """The published algorithm walks every path: three million visits for twenty of them."""
    for count in (20, 1000):
        training = CountedGraph.of(diamonds(count))
        candidates = recomputable(training)
        assert len(candidates) == 3 * count
        assert training.visits(lambda: partition(training, candidates)) == 3 * count  # noqa: B023
        assert [len(segment.nodes) for segment in partition(training, candidates).segments] == [3 * count]


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_long_chains_are_one_segment(order: str) -> None:
    """In whatever order they come to hang together: joined pairs, then joined fours, and so on."""
    b = Builder()
    maps = [b.variable("x", 4)]
    for step in range(4096):
        maps.append(b.forward("tanh", f"t{step}", (4,), maps[-1]))
    numbers = list(range(1, 4097))
    if order != "forward":
        numbers.reverse()
    if order == "shuffled":
        random.Random(3).shuffle(numbers)
    found = groups(partition(b.graph([maps[-1]]), {number: (Entry(number),) for number in numbers}))
    assert found == [tuple(range(1, 4097))]


@pytest.mark.parametrize("name", ALL_CASES)
def test_segments_of_models(name: str) -> None:
    problem = problem_of(any_case(name).training)
    training, found = problem.training, groups(problem.segments)
    assert sorted(number for group in found for number in group) == sorted(problem.candidates)
    assert all(list(group) == sorted(group) for group in found)
    assert [group[0] for group in found] == sorted(group[0] for group in found)
    home = {number: group for group in found for number in group}
    for number in problem.candidates:
        assert not spec(training.nodes[number].op).cost.heavy
        for entry in training.nodes[number].inputs:
            assert entry.node not in home or home[entry.node] == home[number]


@pytest.mark.parametrize("seed", range(5))
def test_segments_do_not_fall_apart(seed: int) -> None:
    training = any_case("densenet121").training
    generator = random.Random(seed)
    candidates = {number: found for number, found in recomputable(training).items() if generator.random() < 0.5}
    graph = nx.Graph()
    for number in candidates:
        below = {entry.node for entry in training.nodes[number].inputs} & set(candidates)
        graph.add_edges_from((number, producer) for producer in below)
    for group in groups(partition(training, candidates)):
        assert len(group) == 1 or nx.is_connected(graph.subgraph(group))


def test_the_pass_takes_light_candidates_alone() -> None:
    training = any_case("slices").training
    found = recomputable(training)
    light = {number: entries for number, entries in found.items() if not spec(training.nodes[number].op).cost.heavy}
    heavy = {number: entries for number, entries in found.items() if spec(training.nodes[number].op).cost.heavy}
    candidates = Candidates(light, heavy, frozenset(), {})
    assert Partition().run(training, candidates) == partition(training, light)
    assert CandidateSegment((1, 2)) == CandidateSegment((1, 2))


def problem(**changes: Any) -> Problem:
    return replace(problem_of_graph(*chain(4)), **changes)


def test_a_choice_has_what_is_forced_and_what_is_chosen() -> None:
    made = problem(must_recompute=frozenset({Entry(0)}))
    assert made.choice([2]).nonzero()[0].tolist() == [0, 2]
    assert made.choice().nonzero()[0].tolist() == [0]
    assert made.chosen(made.choice([2, 3])) == {node: (5,) for node in (0, 2, 3)}


def test_all_outputs_of_a_candidate_are_chosen_together() -> None:
    made = problem_of(any_case("slices").training)
    node = next(number for number, entries in made.candidates.items() if len(entries) > 1)
    ids = [made.training.entry_id(entry) for entry in made.candidates[node]]
    assert made.entry_ids(node) == ids
    assert made.choice([node]).nonzero()[0].tolist() == ids


def test_a_value_is_that_of_all_ways_to_plan_storage() -> None:
    made = problem_of(any_case("dropout").training, assigns=True)
    schedule = made.splits(made.candidates)
    assert made.all_ranges == (*made.match_ranges, StorageStrategy.ASSIGNED)
    exact = made.evaluator.evaluate(made.choice(list(schedule)), made.all_ranges, None, schedule)
    assert made.value(schedule) == exact
    assert len(made.value(schedule).totals) == len(made.match_ranges) + 1
    assert made.evaluate(made.choice(list(schedule))).totals == exact.totals[:-1]
    assert replace(made, assigned_only=True).all_ranges == (StorageStrategy.ASSIGNED,)
    assert replace(made, assigns=False).all_ranges == made.match_ranges


@pytest.mark.parametrize(
    ("limits", "bytes_", "seconds", "rank", "keeps"),
    [
        ({}, 10, 2.0, (0.0, 10.0, 2.0), True),
        ({"max_seconds": 1.5}, 10, 2.0, (0.5, 10.0, 2.0), False),
        ({"max_seconds": 2.0}, 10, 2.0, (0.0, 10.0, 2.0), True),
        ({"max_bytes": 7}, 10, 2.0, (3.0, 0.0, 2.0), False),
        ({"max_bytes": 10}, 10, 2.0, (0.0, 0.0, 2.0), True),
        ({"max_bytes": 10, "max_seconds": 1.0}, 10, 2.0, (0.0, 1.0, 2.0), False),
    ],
)
def test_limits_come_first(
    limits: dict[str, Any], bytes_: int, seconds: float, rank: tuple[float, ...], keeps: bool
) -> None:
    made, value = problem(**limits), Evaluation((bytes_ + 5, bytes_), seconds)
    assert made.rank(value) == rank
    assert made.keeps(value) == keeps


def test_dynamic_problem_may_split() -> None:
    assert problem().may_split
    assert not problem(once=True).may_split
    assert not problem(training=replace(chain(4).training, runner=Runner.STATIC)).may_split


def test_choices_are_fresh() -> None:
    made = problem()
    made.choice()[:] = 1
    assert not np.any(made.choice())


@dataclass(frozen=True)
class Tries:
    """Evaluates these nodes one after the other, all of them before, and gives up none of its own accord."""

    tried: Sequence[Sequence[int]]
    ranges: tuple[int, ...] = (1,)
    limit: int | None = None
    name: str = "tries"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        for nodes in self.tried:
            problem.evaluator.evaluate(problem.choice(nodes), self.ranges, self.limit, problem.splits(nodes))
        return problem.splits(self.tried[-1])


PROBLEM = problem_of_graph(*chain(8))
MANY, FEW, NONE = (1, 2, 3, 4, 5), (3,), ()


def within(looks: int, policy: Tries) -> tuple[RecomputeSchedule, bool]:
    return run_with_deadline(policy, replace(PROBLEM, deadline=hurried(looks)))


def hurried(looks: int) -> Deadline:
    """Over after so many looks."""
    left = [looks]

    class Hurried(Deadline):
        @property
        def is_over(self) -> bool:
            left[0] -= 1
            return left[0] < 0

    return Hurried(1.0, 1.0, 1.0)


def test_choice_without_deadline_is_the_policys() -> None:
    assert run_with_deadline(Tries([MANY, FEW]), PROBLEM) == (PROBLEM.splits(FEW), True)


def test_a_policy_that_comes_to_its_end() -> None:
    assert within(100, Tries([MANY, FEW])) == (PROBLEM.splits(FEW), True)


def test_the_best_so_far_is_taken() -> None:
    value = {nodes: PROBLEM.value(PROBLEM.splits(nodes)).bytes for nodes in (MANY, FEW, NONE)}
    best = min((FEW, MANY), key=lambda nodes: value[nodes])
    assert value[best] < value[NONE]
    worse = FEW if best is MANY else MANY
    assert within(2, Tries([best, worse, NONE])) == (PROBLEM.splits(best), False)
    assert within(0, Tries([best])) == ({}, False), "nothing was looked at"


def test_a_best_that_is_changed_later_counts_as_it_was() -> None:
    class Changes(Tries):
        def choose(self, problem: Problem) -> RecomputeSchedule:
            schedule = {node: list(at) for node, at in problem.splits(best).items()}
            problem.value(schedule)
            for at in schedule.values():
                at.append(len(problem.training.nodes))
            schedule.popitem()
            problem.value(schedule)
            return {}

    best = min((FEW, MANY), key=lambda nodes: PROBLEM.value(PROBLEM.splits(nodes)).bytes)
    assert within(1, Changes([])) == (PROBLEM.splits(best), False)


def test_values_that_are_not_exact_do_not_count() -> None:
    assert within(1, Tries([MANY, FEW], ranges=(StorageStrategy.PEAK,))) == ({}, False)
    assert within(1, Tries([MANY, FEW], limit=0)) == ({}, False)


def test_a_policy_may_notice_by_itself() -> None:
    class Late(Tries):
        def choose(self, problem: Problem) -> RecomputeSchedule:
            raise DeadlineExceeded

    assert within(100, Late([])) == ({}, False)
