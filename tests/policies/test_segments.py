"""Segments are the connected groups of candidates between operators that do not run twice."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.passes.candidates import Candidates
from echo.passes.partition import Partition
from echo.policies.segments import Segment, Segments, partition
from tests.conftest import ALL_CASES, any_case, problem_of, recomputable
from tests.made_graphs import Builder, CountedGraph, diamonds


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
        assert not spec(training.nodes[number].op).heavy
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
    light = {number: entries for number, entries in found.items() if not spec(training.nodes[number].op).heavy}
    heavy = {number: entries for number, entries in found.items() if spec(training.nodes[number].op).heavy}
    candidates = Candidates(light, heavy, frozenset(), {})
    assert Partition().run(training, candidates) == partition(training, light)
    assert Segment((1, 2)) == Segment((1, 2))
