"""Fixtures for how a test plans and trains: cheaply, with nothing remembered, on poisoned memory."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Iterator, Sequence

import mxnet as mx
import pytest

import echo
from echo.estimators.storage_planner import Evaluator
from echo.frontend.framework import MxnetFramework
from echo.frontend.install import install_hook
from echo.ir.training_graph import TrainingGraph
from echo.passes.rules import RULES
from echo.planning.planner import Planner
from echo.runtime import bind_plan
from fuzz.poison import poisoned


@pytest.fixture
def cheap_planning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planning with a short search and a cache of its own, for tests that plan many graphs."""
    full = MxnetFramework.evaluator

    def evaluator(session: MxnetFramework, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        found, effort = full(session, training, seconds)
        return found, min(effort, 200 * len(training.nodes))

    monkeypatch.setattr(MxnetFramework, "evaluator", evaluator)
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    # a cost table remembers what cannot be measured
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))


@pytest.fixture
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plan is remembered, here or on the disk; transparent mode ends with the test."""
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: None)
    stock = mx.sym.Symbol.simple_bind, mx.sym.Symbol.bind
    yield
    echo.disable()
    mx.sym.Symbol.simple_bind, mx.sym.Symbol.bind = stock


@pytest.fixture
def free_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces do not decide: small models are fused of which a larger one would be fused as well."""
    monkeypatch.setattr("echo.passes.variant.RULES", replace(RULES, tiny=1 << 40))


@pytest.fixture(params=["plain", "poisoned"])
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs as it is, and once more on memory that is overwritten when nothing reads it any more."""
    assert install_hook() == ""
    with poisoned() if request.param == "poisoned" else contextlib.nullcontext():
        yield
