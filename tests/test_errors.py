"""Errors: one line for the log, and a budget's numbers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from echo.errors import BudgetError, EchoError, OptionError, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "EchoError: plain"),
        ("Traceback:\n  [11:22:33] src/a.cc:7:\n Check failed", "EchoError: Traceback: src/a.cc:7: Check failed"),
        ("", "EchoError"),
    ],
)
def test_a_message_is_one_line_without_the_time(text: str, line: str) -> None:
    assert one_line(EchoError(text)) == line


def test_a_long_message_is_cut() -> None:
    line = one_line(EchoError("x" * 1000))
    assert len(line) == 400
    assert line.endswith("xxx ...")


def test_an_option_error_is_a_value_error() -> None:
    assert issubclass(OptionError, ValueError)


def test_a_budget_error_has_its_numbers_and_can_be_sent() -> None:
    error = BudgetError(5000, 7000, "weights", " within max_overhead=0.1")
    assert (error.budget, error.reachable) == (5000, 7000)
    assert str(error) == (
        "memory_budget of 5,000 bytes cannot be met within max_overhead=0.1: "
        "the least that can be reached is 7,000 bytes. Held at that peak: weights"
    )
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), str(other), other.budget, other.reachable) == (BudgetError, str(error), 5000, 7000)


@pytest.mark.parametrize(
    ("budget", "shown"),
    [("50%", " (50%)"), (0.5, " (0.5)"), ("5MB", " (5MB)"), ("5000000", ""), (5_000_000, ""), (5e6, ""), (None, "")],
)
def test_an_error_repeats_a_budget_that_is_no_number_of_bytes(budget: Any, shown: str) -> None:
    error = BudgetError(5_000_000, 6_000_000, "arguments 1 MB").repeating(budget)
    assert f"memory_budget of 5,000,000 bytes{shown} cannot be met" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert (error.budget, error.reachable) == (5_000_000, 6_000_000)
