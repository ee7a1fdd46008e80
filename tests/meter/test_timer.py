"""How seconds are found: copies minus the other operators of a run. Time is made here, nothing real is measured."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Mapping

import pytest

from echo.meter import timer
from echo.meter import timer as module
from echo.meter.capi import Microbenchmark, Variable
from echo.meter.timer import CACHED_BYTES, LAUNCH, OperatorTimer, Sample, race
from tests.meter.fake_time import fake_time

ONE, FORWARD, CALL = 4e-4, 3e-4, 1e-4  # seconds of a copy, of the operator next to it, of a call
LONG, OVER = 5e-3, 2e-4  # of a product, of a copy that is overwritten
CACHED, STREAMED = 5e-11, 9e-11  # seconds for each byte that a sum moves, from caches and from memory


class Machine:
    """A library whose executors take as long as their operators, by a clock of its own."""

    device = (1, 0)

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[tuple[Any, ...]] = []
        self.ran: list[int] = []

    def array(self, *given: Any) -> Any:
        self.made.append(given)
        return SimpleNamespace(elements=math.prod(given[0]))

    constant = array

    def __getattr__(self, name: str) -> Any:
        return lambda: self.now  # whatever the module asks the time of


class Executor:
    def __init__(self, machine: Machine, graph: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        assert {node["name"] for node in graph["nodes"] if node["op"] == "null"} == set(arrays)
        self.machine, self.arrays = machine, arrays
        ops = [node["op"] for node in graph["nodes"] if node["op"] != "null"]
        moved = 3 * 4 * max((array.elements for array in arrays.values()), default=0)
        sums = moved * (CACHED if moved <= CACHED_BYTES else STREAMED)
        copied = OVER if "over0" in (node["name"] for node in graph["nodes"]) else 0.0
        known = {"fast": 0.0, "slow": ONE, "long": LONG, "forward": FORWARD, "_copy": copied, "elemwise_add": sums}
        self.seconds = CALL + sum(known[op] for op in ops)
        self.copies = len(ops)
        self.outputs = [object()]

    def forward(self, times: int = 1) -> None:
        self.machine.now += times * self.seconds
        self.machine.ran.append(self.copies)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(module, "Executor", Executor)
    monkeypatch.setattr(timer, "time", fake_time(lambda: made.now))
    return made


def microbenchmark(op: str = "slow", **more: Any) -> Microbenchmark:
    return Microbenchmark(op, {}, (Variable((64, 64)),), **more)


@pytest.mark.parametrize("hot", [True, False])
def test_a_call_is_taken_off(hot: bool, machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    once = clock.once(microbenchmark(hot=hot))
    assert once.seconds == pytest.approx(CALL + ONE)
    assert clock.seconds(microbenchmark(hot=hot), once).seconds == pytest.approx(ONE)


def test_the_operator_next_to_a_gradient_is_taken_off(machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    gradient = microbenchmark(forward="forward", forward_inputs=(Variable((64, 64)),), hot=False)
    assert clock.seconds(gradient, Sample(CALL + FORWARD + ONE)).seconds == pytest.approx(ONE)


def test_time_of_restoring_overwritten_input_is_taken_off(machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    gradient = microbenchmark(forward="forward", forward_inputs=(Variable((64, 64)),), hot=False, over=0)
    assert clock.seconds(gradient, Sample(CALL + FORWARD + OVER + ONE)).seconds == pytest.approx(ONE)


@pytest.mark.parametrize("forward", ["", "forward"])
@pytest.mark.parametrize(("op", "more"), [("long", 0), ("slow", 1)])
def test_a_product_that_stands_out_is_not_run_again(op: str, more: int, forward: str, machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    clock.seconds(microbenchmark("fast"), Sample(CALL))  # which finds what a call takes
    inputs = (Variable((64, 64)),) if forward else ()
    product = microbenchmark(op, forward=forward, forward_inputs=inputs, hot=False, heavy=True)
    once = clock.once(product)
    machine.ran.clear()
    assert clock.seconds(product, once).seconds == pytest.approx(LONG if op == "long" else ONE)
    assert (max(machine.ran, default=0) > bool(forward)) == bool(more)


def test_a_product_that_was_slow_next_to_its_gradient_is_not_taken_off_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    shape = (Variable((64, 64)),)
    clock.once(Microbenchmark("forward", {}, shape, heavy=True))
    gradient = Microbenchmark("long", {}, (0,), forward="forward", forward_inputs=shape, heavy=True)
    once = clock.once(gradient)
    monkeypatch.setattr(Executor, "__init__", slowed(Executor.__init__))
    assert clock.seconds(gradient, once).seconds == pytest.approx(LONG)
    other = gradient._replace(forward_inputs=(Variable((32, 64)),))
    assert clock.seconds(other, once).seconds == pytest.approx(LONG - 1e-3), (
        "another operator, known from this moment alone"
    )


def slowed(made: Any) -> Any:
    """Executors that take a millisecond longer, as where other programs take their turns."""

    def made_slower(executor: Executor, *given: Any) -> None:
        made(executor, *given)
        executor.seconds += 1e-3

    return made_slower


def test_noise_is_no_time(machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    assert clock.seconds(microbenchmark("fast"), clock.once(microbenchmark("fast"))).seconds == pytest.approx(
        LAUNCH / 10
    )


def test_copies_stand_out_and_stay_within_memory(machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    clock.seconds(microbenchmark("fast"), Sample(CALL))
    assert max(machine.ran) == 64
    clock.seconds(microbenchmark("fast", hot=False), Sample(CALL))
    assert machine.ran[-1] == 16
    clock.seconds(microbenchmark("fast", bytes=6 << 20), Sample(CALL))
    assert machine.ran[-1] == 2


def test_copies_on_a_gpu_exceed_its_caches(machine: Machine) -> None:
    machine.device = (2, 0)
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    clock.seconds(microbenchmark("fast", bytes=6 << 20), Sample(CALL))
    assert machine.ran[-1] == 21


@pytest.mark.parametrize(("seconds", "heavy", "times"), [(0.03, False, 10.0), (0.03, True, 0.0), (0.008, False, 0.0)])
def test_long_run_says_how_many_times_too_long(seconds: float, heavy: bool, times: float, machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    assert clock.too_long(microbenchmark(heavy=heavy), seconds) == pytest.approx(times)


def test_arrays_are_used_again(machine: Machine) -> None:
    clock = OperatorTimer(machine)  # type: ignore[arg-type]
    clock.once(microbenchmark())
    clock.once(microbenchmark("fast"))
    assert len(machine.made) == 1
    large = Microbenchmark("fast", {}, (Variable((13500, 5000)),))
    clock.once(large)
    clock.once(microbenchmark())
    assert len(machine.made) == 3, "what was kept took too much"


def test_streaming_is_memory_time_less_cache_time(machine: Machine) -> None:
    assert OperatorTimer(machine).streaming() == pytest.approx(STREAMED - CACHED, rel=1e-3)  # type: ignore[arg-type]


class RaceMachine:
    """A library whose executors take as long as their graph says, the first step ten times that."""

    device = (1, 0)

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: dict[str, int] = {}

    def array(self, *_: Any) -> Any:
        return self

    constant = array

    def __getattr__(self, name: str) -> Any:
        return lambda: self.now  # whatever the module asks the time of

    def like(self, _: float) -> Any:
        return self


class RaceExecutor:
    def __init__(self, machine: RaceMachine, graph: tuple[str, float], given: Any, into: Any) -> None:
        self.machine, (self.name, self.seconds) = machine, graph
        self.outputs = [machine]
        assert set(given) == set(into) == {"x"}

    def step(self, heads: Any, times: int = 1) -> None:
        assert times == 1
        count = self.machine.steps[self.name] = self.machine.steps.get(self.name, 0) + 1
        self.machine.now += self.seconds * (10 if count == 1 else 1 + 0.1 * (count % 3))


def run(
    limit: float, monkeypatch: pytest.MonkeyPatch, **seconds: float
) -> tuple[Mapping[str, float] | None, RaceMachine]:
    machine = RaceMachine()
    monkeypatch.setattr(module, "Executor", RaceExecutor)
    monkeypatch.setattr(timer, "time", fake_time(lambda: machine.now))
    graphs = {name: (name, each) for name, each in seconds.items()}
    return race(machine, graphs, {"x": ((2, 3), 0)}, limit), machine  # type: ignore[arg-type]


def test_the_shortest_without_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found, machine = run(1000.0, monkeypatch, one=1.0, other=1.1)
    assert found == {"one": pytest.approx(1.0), "other": pytest.approx(1.1)}
    assert machine.steps == {"one": 10, "other": 10}


def test_the_hopeless_drop_out_but_never_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found, machine = run(1000.0, monkeypatch, one=3.0, other=1.0, third=2.0)
    assert found is not None
    assert set(found) == {"one", "other", "third"}
    assert machine.steps == {"one": 10, "other": 10, "third": 2}


def test_late_run_gives_no_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    found, machine = run(15.0, monkeypatch, one=1.0, other=1.0)
    assert found is None
    assert machine.now < 25


def test_rounds_end_before_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, machine = run(40.0, monkeypatch, one=1.0, other=1.0)
    assert found is not None
    assert machine.now <= 40
    assert 3 <= machine.steps["one"] < 10
