"""Fuzzed programs in which compute-heavy operators run twice."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

import echo
from echo.estimators.cost_model import Measured
from echo.frontend.framework import MxnetFramework
from echo.frontend.install import install_hook
from echo.passes import select, variant
from echo.passes.rules import RULES
from fuzz import blocks, symbols, training
from fuzz.deepening import copies, deepening, most_copies
from fuzz.options import deepen, draw_options, unmet
from fuzz.program import Line, Program, argument

OPTIONS = {"policy": "search", "fuse": False, "max_overhead": None, "max_time": 4.0}


@pytest.fixture(autouse=True)
def known_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the fuzzer makes them up."""
    assert install_hook() == ""
    monkeypatch.setattr(MxnetFramework, "measure_function", lambda _: lambda *_: Measured(1e-5))
    monkeypatch.setenv("ECHO_CACHE_DIR", os.devnull + "/none")  # a plan that is kept does not know of rules


def chain(layers: int, how: dict[str, Any]) -> Program:
    lines = [argument("data0", (64, 32))]
    for _ in range(layers):
        lines.append(Line("mx.sym.FullyConnected({0}, num_hidden=32)", (len(lines) - 1,), (64, 32)))
        lines.append(Line("mx.sym.LeakyReLU({0}, act_type='gelu')", (len(lines) - 1,), (64, 32)))
    return Program(tuple(lines), (len(lines) - 1,), options=dict(OPTIONS), how=how)


def test_small_program_runs_heavy_operators_twice_where_rules_are_off() -> None:
    most_copies()
    counts = {}
    for deep in ("", "free"):
        assert symbols.check(chain(6, {"deep": deep})) is None
        counts[deep] = most_copies()
    assert counts[""] == 0
    assert counts["free"] > 0
    assert most_copies() == 0


def test_plan_without_heavy_copies_counts_none() -> None:
    program = chain(6, {})
    plan = echo.plan(symbols.symbol_of(program), policy="all", fuse=False, max_overhead=None)
    assert plan.marks
    assert copies(plan) == 0


def test_rules_are_back_afterwards() -> None:
    with deepening({"deep": "free"}):
        assert (select.RULES.step, select.RULES.heavy) == (variant.RULES.step, variant.RULES.heavy) == (0.0, 0.0)
    with deepening({"deep": "priced"}):
        assert (select.RULES.step, select.RULES.heavy) == (0.0, RULES.heavy)
    assert select.RULES is variant.RULES is RULES
    with deepening({}):
        assert select.RULES is RULES


@pytest.mark.parametrize("kind", [symbols, blocks], ids=["symbols", "blocks"])
def test_a_good_share_of_programs_may_run_heavy_operators_twice(kind: Any) -> None:
    programs = [kind.draw(seed) for seed in range(40)]
    deep = [program for program in programs if "deep" in program.how]
    assert 10 <= len(deep) <= 30
    for program in deep:
        assert program.options["policy"] in ("search", "ilp")
        assert program.options["max_overhead"] is not None or program.options["max_time"] is not None
    assert any("max_time" in program.options for program in programs)


def test_drawn_options_are_options() -> None:
    rng = random.Random(0)
    drawn = [draw_options(rng, ["tanh"], small=True) for _ in range(100)]
    assert any(options.get("heavy") == "never" for options in drawn)
    for options in drawn:
        deepen(rng, options, small=True)
        echo.Options.of(**options)


def test_bound_on_time_that_nothing_else_stands_against_has_to_be_met() -> None:
    error = echo.TimeLimitError(1.0, 1.1, 100)
    assert unmet({"policy": "search"}, error) == f"TimeLimitError: {error}"
    for more in ({"recompute": ["tanh"]}, {"memory_budget": 0.5}, {"policy": "all"}):
        assert unmet({"policy": "search", **more}, error) is None


def test_training_with_copies_is_compared_with_that_without() -> None:
    """Or a fault would go unnoticed."""
    program = chain(3, {"deep": "free"})
    symbol = symbols.symbol_of(program)
    expected = training.train(symbol, {}, program.how)
    expected[0]["output 0"] = expected[0]["output 0"] * 1.5
    assert training.differences(training.train(symbol, {}, program.how), expected, fused=False)
