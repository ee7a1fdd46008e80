"""Checkpoints: memory that grows as the root of a chain's length and slower, and where they are placed."""

from __future__ import annotations

import math
from functools import partial

import pytest

from echo.ir.schedule import steps_of
from echo.ir.training_graph import TrainingGraph
from echo.policies.data_graph import problem_of_graph
from echo.policies.sublinear import Sublinear
from tests.support.data_graphs import chain, node, unrolled
from tests.support.planning import calls_of


@pytest.mark.parametrize("length", [100, 400, 900])
def test_one_level_takes_two_roots(length: int) -> None:
    """Chen et al., section 4: sqrt(n) checkpoints and as much for one segment, in one more forward pass."""
    problem = problem_of_graph(*chain(length), once=True)
    value = problem.value(Sublinear().choose(problem))
    assert value.bytes <= 2 * math.sqrt(length) + 3
    assert value.seconds <= length


def test_levels_take_less() -> None:
    """Segments in segments: the fourth root, at one more forward pass a level."""
    length = 1000
    problem = problem_of_graph(*chain(length))
    schedule = Sublinear().choose(problem)
    value = problem.value(schedule)
    assert value.bytes <= 4 * length**0.25 * 1.5 + 3
    assert value.seconds <= 4 * length
    assert max(map(len, schedule.values())) <= 4


def test_checkpoints_lie_where_few_bytes_cross() -> None:
    """Blocks of three large maps and a small one: only small ones are stashed."""
    sizes = [1 if number % 4 == 3 else 100 for number in range(48)]
    nodes = [node("relu", size, [number - 1] if number else [], number) for number, size in enumerate(sizes)]
    nodes.append(node("loss", 1, [47], 48))
    for number in reversed(range(48)):
        nodes.append(node("grad", 1, [len(nodes) - 1, number], len(nodes), forward=False))
    training = TrainingGraph(tuple(nodes), (), 0, 0)
    problem = problem_of_graph(training, (1.0,) * len(nodes), once=True)
    schedule = Sublinear().choose(problem)
    again = {step.node for step in steps_of(training, schedule) if step.node != step.position}
    stashed = set(range(48)) - again
    assert 3 <= len(stashed) <= 12
    assert all(number % 4 == 3 for number in stashed - {47})
    assert problem.value(schedule).bytes < 0.2 * problem.value({}).bytes


@pytest.mark.slow
def test_work_grows_with_the_graph() -> None:
    work = []
    for steps in (50, 200, 800):
        problem = problem_of_graph(*unrolled(steps), heavy=False, simulations=4000)
        choice, calls = calls_of(partial(Sublinear().choose, problem))
        work.append(calls)
        value = problem.value(choice)
        assert value.bytes < 0.75 * problem.value({}).bytes
    assert work[2] < 5 * work[1]
