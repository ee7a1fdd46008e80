"""Live bytes with the native library and without."""

from __future__ import annotations

import random

import pytest

from echo.errors import NativeError
from echo.estimators import scheduler
from echo.estimators.scheduler import CHUNKS, LIVE, LiveEvaluator, Scheduler
from echo.ir.graph import Entry
from echo.ir.schedule import replay, steps_of
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType
from echo.policies.data_graph import problem_of_graph
from tests.support.data_graphs import chain, random_graph


def without_library(*_: object) -> None:
    raise NativeError("there is none")


def test_python_says_what_the_native_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        generator = random.Random(seed)
        graph = random_graph(seed, 12)
        native = problem_of_graph(*graph)
        with monkeypatch.context() as patch:
            patch.setattr(scheduler, "Scheduler", without_library)
            plain = LiveEvaluator(*graph)
        backward = [number for number, node in graph.training.operators() if not node.forward]
        for _ in range(5):
            chosen = generator.sample(sorted(native.candidates), 6)
            schedule = {number: tuple(sorted(generator.sample(backward, 2))) for number in chosen[:3]}
            choice = native.choice(chosen)
            for given in (None, schedule):
                value, same = (e.evaluate(choice, (1, 2), None, given) for e in (native.evaluator, plain))
                assert value.totals == same.totals, f"seed {seed}"
                assert value.seconds == pytest.approx(same.seconds), f"seed {seed}"
                assert (native.evaluator.executed(choice, given) == plain.executed(choice, given)).all()


def test_splits_go_before_the_choice() -> None:
    """Nodes 8 and 9 of ten are recomputed: once for all, or node 9 from its own gradient on."""
    problem = problem_of_graph(*chain(10))
    choice = problem.choice([8, 9])
    assert problem.evaluator.evaluate(choice, (1,)).seconds == 2
    assert problem.evaluator.executed(choice, {8: (12, 13)})[[8, 9]].tolist() == [1, 1]
    assert problem.evaluator.executed(choice, {8: (11, 12)})[[8, 9]].tolist() == [2, 1]


EFFORT = 400


def random_schedule(generator: random.Random, training: TrainingGraph) -> dict[int, list[int]]:
    """Half of the forward nodes but the last, each of which runs again twice."""
    forward = [number for number, node in training.operators() if node.forward]
    return {
        number: sorted(generator.sample(training.backward, 2)) for number in forward[:-1] if generator.random() < 0.5
    }


def test_steps_bytes_and_seconds_are_those_of_the_specification() -> None:
    for seed in range(60):
        generator = random.Random(seed)
        training, seconds = random_graph(seed, generator.randint(4, 20))
        schedule = random_schedule(generator, training)
        scheduler = Scheduler(training, seconds)
        steps = steps_of(training, schedule)
        assert scheduler.steps(schedule) == steps, f"seed {seed}"
        found = scheduler.simulate(schedule)
        replayed = replay(training, [step.node for step in steps], seconds)
        assert found.bytes == replayed.bytes, f"seed {seed}"
        assert found.seconds == pytest.approx(replayed.seconds - sum(seconds)), f"seed {seed}: the copies alone"


def test_outputs_of_several_live_to_the_end_where_the_forward_pass_left_them() -> None:
    """Nodes of two outputs, some of which live to the end: recomputed ones are alive twice."""
    twice = 0
    for seed in range(60):
        generator = random.Random(seed)
        training, seconds = random_graph(seed, generator.randint(4, 20))
        nodes = [
            node.having(outputs=(*node.outputs, TensorType((generator.choice((0, 3)),), 3))) for node in training.nodes
        ]
        forward = [number for number, node in training.operators() if node.forward]
        ends = tuple(Entry(number, generator.choice((0, 1))) for number in generator.sample(forward, 3))
        training = TrainingGraph(tuple(nodes), ends, 3, 0)
        splits = random_schedule(generator, training)
        steps = steps_of(training, splits)
        replayed = replay(training, [step.node for step in steps], seconds)
        assert Scheduler(training, seconds).simulate(splits).bytes == replayed.bytes, f"seed {seed}"
        again = {step.node for step in steps if step.node != step.position}
        twice += any(entry.node in again for entry in ends)
    assert twice > 20


def test_values_that_stay_in_kernels_are_those_of_the_specification() -> None:
    fewer = 0
    for seed in range(60):
        generator = random.Random(seed)
        plain, seconds = random_graph(seed, generator.randint(4, 20))
        nodes = [
            node.having(in_kernel={at: generator.choice((0, 1, 2)) for at in range(len(node.inputs))
                                   if generator.random() < 0.7})
            for node in plain.nodes
        ]  # fmt: skip
        forward = [number for number, node in plain.operators() if node.forward]
        ends = tuple(Entry(number) for number in generator.sample(forward, 2))
        training = TrainingGraph(tuple(nodes), ends, 2, 0)
        splits = random_schedule(generator, training)
        order = [step.node for step in steps_of(training, splits)]
        found = Scheduler(training, seconds).simulate(splits).bytes
        assert found == replay(training, order, seconds).bytes, f"seed {seed}"
        fewer += found < replay(TrainingGraph(plain.nodes, ends, 2, 0), order, seconds).bytes
    assert fewer > 20


def test_a_budget_is_kept_and_what_has_room_in_it() -> None:
    training, seconds = chain(30)
    scheduler = Scheduler(training, seconds)
    stock = scheduler.simulate({})
    everything = {number: (31,) for number in range(30)}
    assert scheduler.keep(everything, stock.bytes) == ({}, stock)
    schedule, found = scheduler.fit(range(30), 20, EFFORT)
    assert found.bytes <= 20 < stock.bytes
    assert found == scheduler.simulate(schedule)
    assert set(scheduler.fit(range(5), 20, EFFORT)[0]) <= set(range(5)), "candidates alone"


@pytest.mark.every(2)
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
            schedule, value = scheduler.least(candidates, share * most.seconds, EFFORT)
            assert value.seconds <= share * most.seconds, f"seed {seed}, share {share}"
            assert value.bytes <= stock.bytes, f"seed {seed}, share {share}"
            assert value == scheduler.simulate(schedule), f"seed {seed}, share {share}"
            saved += share == 0.5 and value.bytes < stock.bytes
    assert saved > 60


def test_priced_seconds_recompute_less_and_candidates_alone() -> None:
    """The dearer a second, the fewer of them; schedules that are taken cost less than any other on the way."""
    fewer = 0
    for seed in range(60):
        graph = random_graph(seed, random.Random(seed).randint(8, 40))
        scheduler = Scheduler(*graph, CHUNKS)
        operators = [number for number, node in graph.training.operators() if node.forward][:-1]
        candidates = operators[::2]
        stock, free = scheduler.simulate({}), scheduler.least(candidates, 1e300, EFFORT)[1]
        step = (stock.bytes - free.bytes) / max(free.seconds, 1e-9)  # what a second saves on the whole way
        schedule, priced = scheduler.least(candidates, 1e300, EFFORT, price=1.5 * step)
        assert set(schedule) <= set(candidates), f"seed {seed}"
        assert priced.bytes + 1.5 * step * priced.seconds <= stock.bytes, f"seed {seed}"
        fewer += priced.seconds < free.seconds
        assert scheduler.least(candidates, 1e300, EFFORT, price=1e12)[1].seconds <= 1e-6
    assert fewer > 10
