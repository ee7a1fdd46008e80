"""Minimum cuts against networkx."""

from __future__ import annotations

import random

import networkx as nx

from echo.policies.solvers.flow import UNLIMITED, Network


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
