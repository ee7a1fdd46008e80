"""Fixtures that every test has: nothing of the user's, of an earlier test or of a busy machine changes it."""

from __future__ import annotations

from typing import Any, Iterator

import pytest

from echo.estimators.cost_model import UnmeasurableError
from echo.frontend.framework import MxnetFramework
from echo.runtime.peak_prediction import PEAK_PREDICTION
from echo.system.process import NEVER, Deadline
from echo.system.threads import ONCE

MEASURE_FUNCTION = MxnetFramework.measure_function


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured costs go to a folder of this session, never to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECHO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    """A warning of an earlier test is logged again in this one."""
    ONCE.forget()


@pytest.fixture(autouse=True, scope="session")
def no_races() -> Iterator[None]:
    """No layout is chosen by what the clock says: who wants another one patches `MxnetFramework.race` again."""

    def race(*_: Any) -> None:
        raise UnmeasurableError("this test measures nothing")

    with pytest.MonkeyPatch.context() as patch:  # not the fixture, whose patches would outlive those of a test's others
        patch.setattr(MxnetFramework, "race", race)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_measurements() -> Iterator[None]:
    """Seconds of operators are estimates, so no plan depends on the clock; tests that measure use `measures`."""

    def measure(*_: Any) -> float:
        raise UnmeasurableError("this test measures nothing")

    with pytest.MonkeyPatch.context() as patch:  # as for races
        patch.setattr(MxnetFramework, "measure_function", lambda _: measure)
        yield


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch, no_measurements: None) -> None:
    """Planning measures operators in this test, as it does for users."""
    monkeypatch.setattr(MxnetFramework, "measure_function", MEASURE_FUNCTION)


class _Patient:
    """Replaces `echo.system.process.Deadline`: a busy machine changes no plan of a test."""

    @staticmethod
    def after(_: float | None) -> Deadline:
        return NEVER


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest) -> Iterator[None]:
    """Planning takes the time that it takes, but in the tests of the deadline and of the time for further shapes."""
    with pytest.MonkeyPatch.context() as patch:  # one of its own: the order of other fixtures stays
        if not request.module.__name__.endswith(("test_reuse", "test_shape_plans")):
            patch.setattr("echo.planning.reuse.SpareTime.allows", lambda *_: True)
        if not request.module.__name__.endswith("deadline"):
            patch.setattr("echo.planning.planner.Deadline", _Patient)
        yield


@pytest.fixture(autouse=True)
def nothing_predicted() -> None:
    """No graph of an earlier test waits for an update of weights, to log the peak of the process."""
    PEAK_PREDICTION._plan = None
