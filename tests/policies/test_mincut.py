"""The least stash within a bound on time."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial

import networkx as nx
import pytest

from echo.estimators.scheduler import Scheduler
from echo.policies.data_graph import problem_of_graph
from echo.policies.mincut import UNLIMITED, Mincut, Network, least_bytes, least_stash
from echo.policies.problem import Problem
from echo.policies.search import Search
from tests.policies.test_certificate import spaces
from tests.support.cases import any_case
from tests.support.data_graphs import ILP_NAMES, chain, ilp_graph, random_graph, unrolled
from tests.support.planning import calls_of, problem_of


def test_a_price_buys_seconds() -> None:
    problem = problem_of_graph(*unrolled(10), heavy=False)
    free, dear, priceless = (problem.splits(least_stash(problem, price)) for price in (0.0, 1.05e8, 1e15))
    seconds = [problem.value(schedule).seconds for schedule in (free, dear, priceless)]
    assert seconds[0] > seconds[1] >= seconds[2] == 0
    bound = 0.5 * seconds[0]
    limited = problem_of_graph(*unrolled(10), heavy=False, max_seconds=bound)
    assert limited.value(Mincut().choose(limited)).seconds <= bound


def test_cuts_are_minimal() -> None:
    for seed in range(150):
        generator = random.Random(seed)
        count = generator.randint(2, 14)
        edges = [(*generator.sample(range(count), 2), generator.choice((0, 1, 2, 5, 9))) for _ in range(3 * count)]
        network, graph = Network(count), nx.DiGraph()
        graph.add_nodes_from(range(count))
        for tail, head, capacity in edges:
            network.add(tail, head, capacity)
            known = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
            graph.add_edge(tail, head, capacity=known + capacity)
        on_sink_side = network.sink_side(0, 1)
        assert (on_sink_side[0], on_sink_side[1]) == (False, True), f"seed {seed}"
        cut = sum(capacity for tail, head, capacity in edges if not on_sink_side[tail] and on_sink_side[head])
        assert cut == nx.minimum_cut_value(graph, 0, 1), f"seed {seed}"


def test_nearest_to_the_sink() -> None:
    network = Network(4)
    for tail, head in ((0, 2), (2, 3), (3, 1)):
        network.add(tail, head, 5)
    network.add(0, 3, 0)
    assert network.sink_side(0, 1) == [False, True, False, False]
    assert UNLIMITED > 10**6 * 2**62


def stash(problem: Problem, recomputed: set[int]) -> int:
    """Bytes that lie in memory between the passes if these nodes are recomputed where they are needed."""
    training = problem.training
    needed = [entry.node for entry in training.backward_readers]
    found: set[int] = set()
    seen: set[int] = set()
    while needed:
        number = needed.pop()
        if number in seen:
            continue
        seen.add(number)
        if number in recomputed:
            needed += [entry.node for entry in training.nodes[number].inputs]
        else:
            found.add(number)
    return sum(training.nodes[number].outputs[0].bytes for number in found)


def test_the_least_stash() -> None:
    smaller = 0
    for seed in range(40):
        problem = problem_of_graph(*random_graph(seed, 9), heavy=seed % 2 == 0)
        found = stash(problem, set(least_stash(problem, 0.0)))
        subsets = itertools.chain.from_iterable(
            itertools.combinations(problem.candidates, count) for count in range(len(problem.candidates) + 1)
        )
        assert found == min(stash(problem, set(subset)) for subset in subsets), f"seed {seed}"
        smaller += found < stash(problem, set())
    assert smaller >= 20


@pytest.mark.slow
def test_work_grows_with_the_graph() -> None:
    work = []
    for steps in (200, 800):
        problem = problem_of_graph(*unrolled(steps), heavy=False)
        work.append(calls_of(partial(least_stash, problem, 0.0))[1])
    assert work[1] < 5 * work[0]


def test_no_schedule_of_a_small_graph_needs_less() -> None:
    """Nor is it far below, though it does not count what a node works on while it runs, which here is much."""
    shares = []
    for seed in range(80):
        problem = problem_of_graph(*random_graph(seed, random.Random(seed).randint(3, 8)), once=True)
        some = dict(random.Random(seed).sample(sorted(problem.candidates.items()), len(problem.candidates) // 2 + 1))
        for limited in (problem, replace(problem, candidates=some)):
            scheduler = Scheduler(limited.training, limited.costs.seconds)
            least = min(scheduler.simulate(schedule).bytes for schedule in spaces(limited))
            assert least_bytes(limited) <= least, f"seed {seed}"
            shares.append(least_bytes(limited) / max(least, 1))
    assert sum(shares) / len(shares) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nmt", "lm", "resnet50_v2", "dropout", "slices"])
def test_no_plan_of_light_operators_needs_less(name: str) -> None:
    """MXNet's own graphs: work in place, views, memory that is not the planner's."""
    problem = problem_of(any_case(name).training, assigns=True)
    least = problem.value(Search().choose(problem)).bytes
    assert 0 < least_bytes(problem) <= least


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ILP_NAMES)
def test_no_schedule_of_a_real_graph_needs_less(name: str) -> None:
    problem = problem_of_graph(*ilp_graph(name), heavy=False, simulations=20_000)
    least = problem.value(Search().choose(problem)).bytes
    assert 0.5 * least < least_bytes(problem) <= least


def test_least_bytes_count_what_is_no_candidate() -> None:
    length = 200
    training, seconds = chain(length)
    problem = problem_of_graph(training, seconds)
    assert least_bytes(problem) <= 4
    assert least_bytes(replace(problem, candidates={})) >= length


@pytest.mark.slow
def test_work_of_the_bound_grows_with_the_graph() -> None:
    work = []
    for steps in (100, 400, 1600):
        problem = problem_of_graph(*unrolled(steps), heavy=False)
        least, calls = calls_of(partial(least_bytes, problem))
        work.append(calls)
        assert least > 4096 * steps
    assert work[2] < 5 * work[1]
