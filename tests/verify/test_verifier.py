"""The report of ``verify``: nothing, one warning with a folder, or an error."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.errors import EchoError, VerificationError
from echo.frontend.symbols import graph_of
from echo.ir.training_graph import Runner
from echo.plans.options import Options
from echo.verify.storage import Difference
from echo.verify.verifier import Case, matches_original
from tests.plans.test_plan import plan

pytestmark = pytest.mark.usefixtures("own_folder")
GRAPH = graph_of(mx.sym.tanh(mx.sym.var("x")))


CASE = Case(Runner.EXECUTOR, GRAPH, GRAPH, False, mx.cpu(), None, {"x": "write"}, {"argument": {"x": mx.nd.ones(2)}})


def wrong(count: int) -> list[Difference]:
    return [Difference(f"output {number}", 0.5, np.zeros(1), np.ones(1)) for number in range(count)]


def found(count: int) -> Any:
    return lambda: (wrong(count), "5 MB became 3 MB")


def test_no_difference_is_said_and_written_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "echo"):
        assert matches_original(CASE, found(0), True)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert caplog.messages[0].endswith("those of the original graph; 5 MB became 3 MB")
    assert not list(tmp_path.iterdir())
    assert "within" not in caplog.text, "every bit was compared"


def test_graph_with_fused_operators_is_said_to_be_within_the_tolerance(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "echo"):
        assert matches_original(dataclasses.replace(CASE, fuses=True), found(0), True)
    assert "outputs, gradients, states (within 2e-05 of the largest element, as operators are fused)" in caplog.text


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, "; and 2 more")])
def test_a_difference_is_one_warning_and_a_folder(
    count: int, more: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not matches_original(CASE, found(count), False)
    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelname == "WARNING"
    assert message.count("of its largest element") == min(count, 3)
    assert f"{more}. Please report it" in message
    (folder,) = tmp_path.iterdir()
    assert str(folder) in message
    assert len(json.loads((folder / "about.json").read_text())["differences"]) == count


def test_strict_verify_raises_verification_error(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=f"output 0 by 5.0e-01 .* in {re.escape(str(tmp_path))}"):
        matches_original(CASE, found(1), True)


@pytest.mark.parametrize(
    "error", [EchoError("first\nlast"), mx.MXNetError("first\nlast"), KeyError("last"), ValueError()]
)
def test_graph_that_cannot_be_tried_counts_as_right(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise error

    assert matches_original(CASE, fail, True)
    (message,) = caplog.messages
    assert message.startswith("echo: verify: a graph was not verified: ")
    assert message.rstrip("'").endswith(("last", "ValueError"))


@pytest.mark.parametrize(
    ("options", "original", "planned", "text"),
    [
        ({}, 0.1, 0.12, ""),  # within 10 % and noise
        ({}, 0.1, 0.13, "a step took 1.30 times the original one, and the bound is 1.10"),
        ({"max_time": 1.0}, 0.1, 0.12, "a step took 1.20 times the original one, and the bound is 1.00"),
        ({"max_time": 1.5}, 0.1, 0.13, ""),
        ({"max_overhead": None}, 0.1, 0.5, ""),  # no bound
        ({}, 0.01, 0.05, ""),  # too short to tell
    ],
)
def test_step_above_its_bound_is_a_warning(
    options: dict[str, Any], original: float, planned: float, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = dataclasses.replace(CASE, options=Options(**options), seconds={False: [9.0, original], True: [planned, 9.0]})
    assert case.why_slow().startswith(text)
    assert bool(text) == bool(case.why_slow())
    assert matches_original(case, found(0), True)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == (
        [f"echo: verify: {case.why_slow()}"] if text else []
    )


@pytest.mark.parametrize(("seconds", "told"), [(0.001, False), (0.02, True)])
def test_slow_step_is_advised_to_recompute_less_only_if_it_recomputes(seconds: float, told: bool) -> None:
    slow = dataclasses.replace(CASE, options=Options(), seconds={False: [0.1], True: [0.2]})
    case = dataclasses.replace(slow, plan=plan(step_seconds=1.0, overhead_seconds=seconds))
    assert ("a smaller max_overhead or heavy='never'" in case.why_slow()) == told
    assert case.why_slow().endswith("mxecho record measures more steps")


def test_case_without_steps_of_both_graphs_is_not_slow() -> None:
    assert dataclasses.replace(CASE, options=Options(), seconds={False: [1.0]}).why_slow() == ""
