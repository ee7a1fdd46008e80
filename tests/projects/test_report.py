"""The row that the runs of a model give together."""

from dataclasses import replace
from typing import Any

import numpy as np

from projects.report import row_of, words
from projects.run import Run

STOCK = Run(
    arrays={"gradient/w": np.array([1.0, 2.0]), "loss/0": np.array([3.0]), "random/numpy": np.array([0.5])},
    seconds=1.0,
    processor_seconds=1.0,
    rss_mb=100.0,
    counter_mb=10.0,
    allocated_mb=20.0,
)


def _with(**arrays: Any) -> Run:
    return replace(STOCK, arrays={**STOCK.arrays, **{name.replace("_", "/"): one for name, one in arrays.items()}})


def _row(**changed: Run) -> "dict[str, Any]":
    runs = {name: STOCK for name in ("stock", "unfused", "cold", "warm")}
    return row_of("project", "model", 2, {**runs, **{name.replace("_", "-"): run for name, run in changed.items()}})


def test_equal_runs_have_no_fault() -> None:
    assert _row()["faults"] == []


def test_a_bit_is_a_fault_without_fused_operators() -> None:
    (fault,) = _row(unfused=_with(gradient_w=np.array([1.0, np.nextafter(2.0, 3.0)])))["faults"]
    assert "ECHO_FUSE=0: 1 arrays differ, such as gradient/w" in fault


def test_rounding_is_none_with_fused_operators() -> None:
    assert _row(cold=_with(gradient_w=np.array([1.0, 2.0 + 1e-6])))["faults"] == []


def test_difference_above_rounding_is_a_fault_with_fused_operators() -> None:
    (fault,) = _row(warm=_with(gradient_w=np.array([1.0, 2.001])))["faults"]
    assert "warm: gradient/w off by 5.0e-04" in fault


def test_random_streams_have_to_stand_where_they_stood_with_fused_operators_too() -> None:
    (fault,) = _row(cold=_with(random_numpy=np.array([0.6])))["faults"]
    assert "cold: random/numpy differ" in fault


def test_value_undefined_in_stock_is_compared_no_further() -> None:
    other = np.array([9.0])
    row = _row(stock_again=_with(loss_0=other), unfused=_with(loss_0=other), cold=_with(loss_0=other))
    assert (row["undefined"], row["faults"]) == (["loss/0"], [])


def test_a_difference_next_to_an_undefined_array_is_a_fault() -> None:
    different = _with(loss_0=np.array([8.0]), gradient_w=np.array([1.0, 5.0]))
    row = _row(stock_again=_with(loss_0=np.array([9.0])), unfused=different)
    assert row["unfused_differs"] == ["gradient/w"]
    assert len(row["faults"]) == 1


def test_a_process_that_died_is_a_fault() -> None:
    row = _row(cold=Run(failure="SIGFPE in echo/meter.py:1 run"))
    assert row["faults"] == ["cold: SIGFPE in echo/meter.py:1 run"]
    assert "FAULT cold: SIGFPE" in words(row)


def test_a_storage_counter_that_grows_is_told() -> None:
    row = _row(cold=replace(STOCK, counter_mb=10.2))
    assert row["counter_grows"] == ["cold"]
    assert "the storage counter grows: cold" in words(row)


def test_a_counter_is_held_against_the_larger_one_of_two_runs_of_stock() -> None:
    changed = {"stock_again": replace(STOCK, counter_mb=10.3), "cold": replace(STOCK, counter_mb=10.3)}
    assert _row(**changed, warm=replace(STOCK, counter_mb=10.5))["counter_grows"] == ["warm"]


def test_growth_next_to_the_counter_is_told_apart() -> None:
    row = _row(cold=replace(STOCK, allocated_mb=21.3))
    assert (row["counter_grows"], row["allocated_grows"]) == ([], ["cold"])
    assert "what MXNet and oneDNN allocate together grows: cold" in words(row)
    assert _row(cold=replace(STOCK, allocated_mb=20.7))["allocated_grows"] == []


def test_a_model_that_mxnet_alone_cannot_train_has_a_row_that_says_so() -> None:
    row = row_of("project", "model", 2, {"stock": Run(failure="MXNetError: could not construct a sub-memory")})
    assert "FAILED without echo: MXNetError: could not construct a sub-memory" in words(row)
    assert (row["counter_grows"], row["allocated_grows"]) == ([], [])
