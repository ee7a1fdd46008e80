"""The peak of the process that a plan predicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.estimators.footprint import (
    ARRAYS,
    CODE,
    CODE_BYTES,
    HELD,
    HOLES,
    IMPORTED_BYTES,
    NODE_BYTES,
    OUTSIDE,
    OWN,
    OWN_BYTES,
    PLANNED,
    SEEN,
    STATES,
    WORKSPACE_SLOTS,
    WORKSPACES,
)
from echo.ir.training_graph import Runner
from echo.plans import decisions
from echo.plans.key import Argument
from echo.plans.plan import Plan
from echo.report.predicted_peaks import NO_GPU, Process, lines, of_symbol, predict_peaks
from tests.plans.test_plan import PLAN_KEY, plan

MB = 10**6
MAP = 60 * MB  # the output of the plan's FullyConnected


def run_by(runner: str, **settings: str) -> Plan:
    return plan(key=replace(PLAN_KEY, runner=runner, settings=settings))


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXNET_CPU_TEMP_COPY", raising=False)


def test_executor_adds_planned_memory_states_and_code_to_what_is_held() -> None:
    found = predict_peaks(run_by(Runner.EXECUTOR), Process(held=200 * MB, states=20 * MB))
    assert found is not None
    others = {WORKSPACE_SLOTS: MAP, CODE: CODE_BYTES, STATES: 20 * MB}
    held = {HELD: 200 * MB - OWN_BYTES}
    assert found.echo.parts == {**held, OWN: OWN_BYTES, PLANNED: 120 * MB, **others}
    assert found.stock.parts == {**held, PLANNED: 300 * MB, **others}
    assert str(found) == "411 MB instead of 581 MB without echo"
    assert sum(found.to_json()["echo"].values()) == found.echo.total


def test_plan_that_saves_less_than_echo_takes_is_told_without_a_promise() -> None:
    given = run_by(Runner.EXECUTOR)
    found = predict_peaks(replace(given, after=given.before), Process(held=200 * MB))
    assert str(found) == "571 MB with echo, 561 MB without echo"


def test_arrays_to_come_are_counted_once() -> None:
    found = predict_peaks(run_by(Runner.EXECUTOR), Process(held=200 * MB, to_come=True))
    assert found is not None
    assert found.echo.parts[ARRAYS] == found.stock.parts[ARRAYS] == 41 * MB


def test_workspaces_of_fused_operators_count_with_echo_only() -> None:
    given = run_by(Runner.EXECUTOR)
    after = replace(given.after, static={**given.after.static, decisions.WORKSPACES: 7 * MB})
    found = predict_peaks(replace(given, after=after), Process(held=200 * MB))
    assert found is not None
    assert found.echo.parts[WORKSPACES] == 7 * MB
    assert WORKSPACES not in found.stock.parts


def test_outputs_of_a_block_count_three_times() -> None:
    found = predict_peaks(run_by(Runner.STATIC), Process(held=200 * MB, outputs=5 * MB))
    assert found is not None
    assert found.echo.parts[OUTSIDE] == found.stock.parts[OUTSIDE] == 15 * MB


@pytest.mark.parametrize(
    ("runner", "spaces"), [(Runner.EXECUTOR, 1.0), (Runner.SHAPED, 1.5), (Runner.STATIC, 2.5), (Runner.DYNAMIC, 2.5)]
)
def test_spaces_of_the_stock_graph_follow_the_runner(runner: str, spaces: float) -> None:
    found = predict_peaks(run_by(runner, MXNET_CPU_TEMP_COPY="1"), Process(held=200 * MB))
    assert found is not None
    assert found.stock.parts[WORKSPACE_SLOTS] == spaces * MAP
    assert found.echo.parts[WORKSPACE_SLOTS] == MAP


def test_spaces_that_the_user_set_count_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_CPU_TEMP_COPY", "2")
    found = predict_peaks(run_by(Runner.STATIC, MXNET_CPU_TEMP_COPY="2"), Process(held=200 * MB))
    assert found is not None
    assert found.stock.parts[WORKSPACE_SLOTS] == found.echo.parts[WORKSPACE_SLOTS] == 1.5 * MAP


def test_holes_exist_if_arrays_are_allocated_at_each_step() -> None:
    dynamic, static = (
        predict_peaks(run_by(runner), Process(held=200 * MB)) for runner in (Runner.DYNAMIC, Runner.STATIC)
    )
    assert dynamic is not None
    assert static is not None
    assert (dynamic.stock.parts[HOLES], dynamic.echo.parts[HOLES]) == (60 * MB, 24 * MB)
    assert HOLES not in static.stock.parts


def test_peak_of_the_first_step_counts_in_both_predictions() -> None:
    without = predict_peaks(run_by(Runner.STATIC), Process(held=200 * MB))
    assert without is not None
    found = predict_peaks(run_by(Runner.STATIC), Process(held=200 * MB, peak=without.echo.total + 50 * MB))
    assert found is not None
    assert found.echo.parts[SEEN] == found.stock.parts[SEEN] == 50 * MB
    assert found.stock.total == without.stock.total + 50 * MB


def test_gpu_has_no_prediction_and_says_so() -> None:
    given = plan(device="gpu")
    assert predict_peaks(given, Process(held=200 * MB)) is None
    assert list(lines(given, None)) == [f"peak of the process: {NO_GPU}"]


def test_symbol_is_predicted_for_a_module_and_a_block_is_not() -> None:
    given = run_by(Runner.EXECUTOR)
    found = of_symbol(given)
    assert found is not None
    nodes = NODE_BYTES * sum(given.key.operators.values())
    assert found.stock.parts[HELD] == IMPORTED_BYTES + nodes + 20 * MB, "Module keeps the weights twice"
    first, *parts = lines(given, found)
    assert first == f"peak of the process, predicted for a Module: {found}"
    assert [line.split(":")[0].strip() for line in parts] == ["without echo", "with echo"]
    assert of_symbol(run_by(Runner.STATIC)) is None


def test_weights_larger_than_maps_decide_how_large_spaces_are() -> None:
    wide = Argument((5000, 4000), "float32", "write")
    given = plan(key=replace(PLAN_KEY, arguments=(*PLAN_KEY.arguments, wide)))
    found = predict_peaks(given, Process(held=200 * MB))
    assert found is not None
    assert found.echo.parts[WORKSPACE_SLOTS] == 80 * MB


def test_graph_without_operators_of_onednn_has_no_spaces() -> None:
    found = predict_peaks(plan(key=replace(PLAN_KEY, operators={"tanh": 1})), Process(held=200 * MB))
    assert found is not None
    assert WORKSPACE_SLOTS not in found.echo.parts


def test_dynamic_graph_adds_holes_to_what_the_first_step_needed() -> None:
    found = predict_peaks(run_by(Runner.DYNAMIC), Process(held=200 * MB, peak=900 * MB))
    assert found is not None
    assert found.echo.total == 900 * MB + found.echo.parts[HOLES]
    assert SEEN not in found.stock.parts
