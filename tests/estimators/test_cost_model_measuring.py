"""What is measured, how often, and which times are believed: a busy machine must not change the result."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Callable

import mxnet as mx
import pytest

from echo.estimators import cost_model
from echo.estimators.cost_model import (
    Budget,
    CostModel,
    LateError,
    Measured,
    Measuring,
    UnavailableError,
    UnmeasurableError,
    estimate,
)
from echo.estimators.cost_table import BYTES_PER_SECOND, CostTable
from echo.estimators.operator_groups import groups_of
from echo.ir.graph import VARIABLE, Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from tests.support.cases import case_of

COUNT = 12
Machine = Callable[[TrainingGraph, int], Measured]


def operators(count: int = COUNT) -> TrainingGraph:
    """Light operators of many kinds and sizes, each alone in its family."""
    nodes = []
    for number in range(count):
        types = (TensorType((256, 256 + 64 * number)),)
        nodes.append(TrainingNode(VARIABLE, f"x{number}", types))
        attrs = {"act_type": f"kind{number}"}
        nodes.append(TrainingNode("Activation", f"y{number}", types, (Entry(2 * number),), attrs=attrs))
    return TrainingGraph(tuple(nodes), (Entry(len(nodes) - 1),), 1, 0)


TRAINING = operators()


def true_seconds(training: TrainingGraph, number: int) -> float:
    return 2 * training.nodes[number].outputs[0].bytes / BYTES_PER_SECOND


def quiet(training: TrainingGraph, number: int) -> Measured:
    return Measured(true_seconds(training, number), 0.01)


class Busy:
    """A machine on which some first looks at an operator are wrong by these multiples, and later ones are right."""

    def __init__(self, **wrong: float) -> None:
        self.wrong, self.asked = {int(name[1:]): times for name, times in wrong.items()}, list[int]()

    def __call__(self, training: TrainingGraph, number: int) -> Measured:
        times = 1.0 if number in self.asked else self.wrong.get(number, 1.0)
        self.asked.append(number)
        return Measured(times * true_seconds(training, number), 0.01)


def costs(machine: Machine, folder: Path, limit: float = 10.0, clock_limit: float = 1e9) -> CostModel:
    return estimate(TRAINING, CostTable("test", folder), machine, limit, clock_limit=clock_limit)


def key(number: int) -> str:
    groups, group_of = groups_of(TRAINING)
    at = group_of[number]
    assert at is not None
    return groups[at].key


@pytest.mark.parametrize("times", [500.0, 25.0, 0.4, 0.002])
@pytest.mark.parametrize("number", [1, 23])
def test_a_descheduled_sample_changes_nothing(number: int, times: float, tmp_path: Path) -> None:
    found = costs(Busy(**{f"n{number}": times}), tmp_path / "busy")
    assert found == costs(quiet, tmp_path / "quiet")


def test_samples_descheduled_at_random_change_nothing(tmp_path: Path) -> None:
    draw = random.Random(1)
    for seed in range(10):
        wrong = {f"n{number}": draw.choice([0.01, 40.0]) for number in draw.sample(range(1, 2 * COUNT, 2), 3)}
        found = costs(Busy(**wrong), tmp_path / str(seed))
        assert found == costs(quiet, tmp_path / "quiet"), wrong


def test_a_time_that_never_comes_twice_is_not_believed(tmp_path: Path) -> None:
    times = iter([300.0, 100.0, 900.0, 50.0, 700.0])

    def machine(training: TrainingGraph, number: int) -> Measured:
        measured = quiet(training, number)
        return measured._replace(seconds=measured.seconds * next(times)) if number == 5 else measured

    found = costs(machine, tmp_path)
    assert found.seconds[5] == pytest.approx(true_seconds(TRAINING, 5), rel=0.2), "the rate of the others"
    table = CostTable("test", tmp_path)
    assert (table.get(key(5)), table.is_provisional(key(5))) == (None, True)
    assert found.guessed > 0


def test_of_a_time_that_is_too_short_the_least_that_is_allowed_counts(tmp_path: Path) -> None:
    def machine(training: TrainingGraph, number: int) -> Measured:
        measured = quiet(training, number)
        return measured._replace(seconds=measured.seconds / 20, disturbed=True) if number == 5 else measured

    found = costs(machine, tmp_path)
    assert found.seconds[5] == pytest.approx(true_seconds(TRAINING, 5) / 2), "half of what it takes at the rate of most"
    assert CostTable("test", tmp_path).is_provisional(key(5))
    assert found.guessed == 0


def test_a_slow_operator_is_believed_that_takes_as_long_twice(tmp_path: Path) -> None:
    def machine(training: TrainingGraph, number: int) -> Measured:
        measured = quiet(training, number)
        return measured._replace(seconds=measured.seconds * 60) if number == 5 else measured

    assert costs(machine, tmp_path).seconds[5] == 60 * true_seconds(TRAINING, 5)
    assert not CostTable("test", tmp_path).is_provisional(key(5))


def test_doubtful_time_that_weighs_most_is_measured_again_where_the_budget_ends(tmp_path: Path) -> None:
    asked: list[int] = []

    def machine(training: TrainingGraph, number: int) -> Measured:
        asked.append(number)
        seconds = true_seconds(training, number) * (60 if number in (21, 23) else 1)
        return Measured(seconds, 0.1)

    groups, _ = groups_of(TRAINING)
    table = CostTable("test", tmp_path)
    Measuring(TRAINING, groups, {}, table, machine, Budget(0.55)).run()
    assert asked == [23, 21, 19, 17, 15, 23], "the largest first"
    assert table.get(key(23)) == 60 * true_seconds(TRAINING, 23)


def test_slow_time_that_comes_twice_on_a_busy_machine_is_used_and_measured_again_later(tmp_path: Path) -> None:
    def machine(training: TrainingGraph, number: int) -> Measured:
        measured = quiet(training, number)
        return measured._replace(seconds=measured.seconds * 60, disturbed=True) if number == 5 else measured

    assert costs(machine, tmp_path).seconds[5] == 60 * true_seconds(TRAINING, 5)
    assert CostTable("test", tmp_path).is_provisional(key(5))


def disturbed(training: TrainingGraph, number: int) -> Measured:
    seconds, spent, _ = quiet(training, number)
    return Measured(1.3 * seconds, spent, True)


def test_times_of_a_busy_machine_are_improved_by_a_later_start(tmp_path: Path) -> None:
    first = costs(disturbed, tmp_path)
    table = CostTable("test", tmp_path)
    assert all(table.is_provisional(key(number)) for number in range(1, 2 * COUNT, 2))
    assert costs(quiet, tmp_path, limit=0.0) == first, "nothing may be measured"
    assert costs(quiet, tmp_path) == costs(quiet, tmp_path / "quiet")
    table = CostTable("test", tmp_path)
    assert not any(table.is_provisional(key(number)) for number in range(1, 2 * COUNT, 2))


def test_times_are_not_improved_where_little_time_is_left(tmp_path: Path) -> None:
    """Of a large graph the first operator to improve may take seconds, which its search then lacks."""
    first = costs(disturbed, tmp_path)
    assert costs(quiet, tmp_path, clock_limit=0.4) == first
    assert costs(quiet, tmp_path, limit=0.4) == first


def test_gradient_of_a_known_product_is_not_measured_where_little_time_is_left(tmp_path: Path) -> None:
    """It may take seconds in each start, and follows its product."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=512, name="fc")
    training, asked = case_of(mx.sym.sin(hidden), {"data": (64, 512)}).training, list[str]()

    def measure(training: TrainingGraph, number: int) -> Measured:
        asked.append(training.nodes[number].op)
        if asked[-1] == "_backward_FullyConnected":
            raise UnavailableError("not now")
        return Measured(1e-4, 0.01)

    for clock_limit in (10.0, 0.4):
        estimate(training, CostTable("test", tmp_path), measure, 10.0, clock_limit=clock_limit)
        assert ("_backward_FullyConnected" in asked) == (clock_limit == 10.0)
        asked.clear()


def test_gradients_of_light_operators_are_measured_early_and_of_products_last(tmp_path: Path) -> None:
    """The roofline tells little of the former, and products tell enough of the latter."""
    data = mx.sym.var("data")
    hidden = mx.sym.LayerNorm(mx.sym.FullyConnected(data, num_hidden=512, name="fc"), name="norm")
    training, asked = case_of(mx.sym.sin(hidden), {"data": (64, 512)}).training, list[str]()

    def measure(training: TrainingGraph, number: int) -> Measured:
        asked.append(training.nodes[number].op)
        return Measured(1e-4, 0.01)

    estimate(training, CostTable("test", tmp_path), measure, 10.0)
    order = list(dict.fromkeys(asked))
    assert order.index("_backward_LayerNorm") < order.index("LayerNorm")
    assert order[-1] == "_backward_FullyConnected"


def test_a_later_start_on_a_busy_machine_soon_gives_up(tmp_path: Path) -> None:
    first = costs(disturbed, tmp_path)
    asked: list[int] = []

    def worse(training: TrainingGraph, number: int) -> Measured:
        asked.append(number)
        measured = disturbed(training, number)
        return measured._replace(seconds=2 * measured.seconds)

    assert costs(worse, tmp_path) == first
    assert len(asked) == 2


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_a_busy_clock_does_not_change_what_is_measured(
    slow: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(cost_model, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    asked: list[int] = []

    def machine(training: TrainingGraph, number: int) -> Measured:
        asked.append(number)
        now[0] += slow * 0.1
        return Measured(true_seconds(training, number), 0.1)

    groups, _ = groups_of(TRAINING)
    Measuring(TRAINING, groups, {}, CostTable("test", tmp_path), machine, Budget(0.75)).run()
    assert len(asked) == 8
    assert len(set(asked)) == 7, "a fifth of the budget is for what looks doubtful or weighs most"


def test_the_clock_ends_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(cost_model, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    asked: list[int] = []

    def machine(training: TrainingGraph, number: int) -> Measured:
        asked.append(number)
        now[0] += 0.5
        if number == 1:
            raise UnmeasurableError("takes its time, too")
        return Measured(true_seconds(training, number), 1e-3)

    groups, _ = groups_of(TRAINING)
    Measuring(TRAINING, groups, {}, CostTable("test", tmp_path), machine, Budget(1.0, 2.0)).run()
    assert len(asked) == 4


@pytest.mark.parametrize("error", [LateError, UnmeasurableError])
def test_late_measurement_is_tried_again_by_a_later_start(error: type[UnmeasurableError], tmp_path: Path) -> None:
    def machine(training: TrainingGraph, number: int) -> Measured:
        if number == 5:
            raise error("no answer")
        return quiet(training, number)

    costs(machine, tmp_path)
    table = CostTable("test", tmp_path)
    assert (key(5) in table, table.get(key(5)), table.is_provisional(key(5))) == (True, None, error is LateError)
    costs(quiet, tmp_path)
    assert (CostTable("test", tmp_path).get(key(5)) is not None) is (error is LateError)
