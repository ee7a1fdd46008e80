"""The native scheduler within a bound on time: never above it, and what it finds there is not lost."""

from __future__ import annotations

import random

import pytest

from echo.estimators.scheduler import CHUNKS, LIVE, Scheduler
from tests.data_graphs import random_graph

EFFORT = 400


@pytest.mark.parametrize("measure", [LIVE, CHUNKS])
def test_the_smallest_keeps_the_bound_on_time(measure: int) -> None:
    """A drop that takes more time than is left is not the last word: with half of all the time there is a lot to save.

    Looser bounds never need more bytes than the tightest one, which is nothing at all.
    """
    saved = 0
    for seed in range(120):
        graph = random_graph(seed, random.Random(seed).randint(4, 40))
        scheduler = Scheduler(*graph, measure)
        candidates = [number for number, node in graph.training.operators() if node.forward][:-1]
        stock, most = scheduler.simulate({}), scheduler.least(candidates, 1e300, EFFORT)[1]
        for share in (0.0, 0.1, 0.3, 0.5, 0.9):
            splits, value = scheduler.least(candidates, share * most.seconds, EFFORT)
            assert value.seconds <= share * most.seconds, f"seed {seed}, share {share}"
            assert value.bytes <= stock.bytes, f"seed {seed}, share {share}"
            assert value == scheduler.simulate(splits), f"seed {seed}, share {share}"
            saved += share == 0.5 and value.bytes < stock.bytes
    assert saved > 60
