"""Minimum cuts against networkx, and the stash against brute force."""

from __future__ import annotations

import itertools
import random
from functools import partial

import networkx as nx
import pytest

from echo.policies.data_problem import problem_of_graph
from echo.policies.mincut import Mincut
from echo.policies.problem import Problem
from echo.policies.solvers.flow import UNLIMITED, Network
from echo.policies.solvers.stash import least_stash
from tests.conftest import calls_of
from tests.data_graphs import random_graph, unrolled


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
        behind = network.sink_side(0, 1)
        assert (behind[0], behind[1]) == (False, True), f"seed {seed}"
        cut = sum(capacity for tail, head, capacity in edges if not behind[tail] and behind[head])
        assert cut == nx.minimum_cut_value(graph, 0, 1), f"seed {seed}"


def test_nearest_to_the_sink() -> None:
    network = Network(4)
    for tail, head in ((0, 2), (2, 3), (3, 1)):
        network.add(tail, head, 5)
    network.add(0, 3, 0)
    assert network.sink_side(0, 1) == [False, True, False, False]
    assert UNLIMITED > 10**6 * 2**62


def stash(problem: Problem, recomputed: set[int]) -> int:
    """Bytes that lie in memory between the passes if these nodes run again where they are needed."""
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


def test_a_price_buys_seconds() -> None:
    problem = problem_of_graph(*unrolled(10), heavy=False)
    free, dear, priceless = (problem.splits(least_stash(problem, price)) for price in (0.0, 1.05e8, 1e15))
    seconds = [problem.value(splits).seconds for splits in (free, dear, priceless)]
    assert seconds[0] > seconds[1] >= seconds[2] == 0
    bound = 0.5 * seconds[0]
    limited = problem_of_graph(*unrolled(10), heavy=False, max_seconds=bound)
    assert limited.value(Mincut().choose(limited)).seconds <= bound


@pytest.mark.slow
def test_work_grows_with_the_graph() -> None:
    work = []
    for steps in (200, 800):
        problem = problem_of_graph(*unrolled(steps), heavy=False)
        work.append(calls_of(partial(least_stash, problem, 0.0))[1])
    assert work[1] < 5 * work[0]
