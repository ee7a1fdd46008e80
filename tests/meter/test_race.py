"""A race: the shortest of rounds, without those that are hopeless, none where it takes too long. Time is made here."""

from __future__ import annotations

from typing import Any, Mapping

import pytest

from echo.meter import batch
from echo.meter import race as module
from echo.meter.race import race
from tests.meter.fake_time import fake_time


class Machine:
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


class Executor:
    def __init__(self, machine: Machine, graph: tuple[str, float], given: Any, into: Any) -> None:
        self.machine, (self.name, self.seconds) = machine, graph
        self.outputs = [machine]
        assert set(given) == set(into) == {"x"}

    def step(self, heads: Any, times: int = 1) -> None:
        assert times == 1
        count = self.machine.steps[self.name] = self.machine.steps.get(self.name, 0) + 1
        self.machine.now += self.seconds * (10 if count == 1 else 1 + 0.1 * (count % 3))


def run(limit: float, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> tuple[Mapping[str, float] | None, Machine]:
    machine = Machine()
    monkeypatch.setattr(module, "Executor", Executor)
    monkeypatch.setattr(batch, "time", fake_time(lambda: machine.now))
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


def test_what_is_late_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, machine = run(15.0, monkeypatch, one=1.0, other=1.0)
    assert found is None
    assert machine.now < 25


def test_rounds_end_before_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, machine = run(40.0, monkeypatch, one=1.0, other=1.0)
    assert found is not None
    assert machine.now <= 40
    assert 3 <= machine.steps["one"] < 10
