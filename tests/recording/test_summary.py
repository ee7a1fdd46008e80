"""Sums of rows: without the warm-up, and null where something was not measured in each of them."""

from __future__ import annotations

from typing import Any

import pytest

from echo.recording.summary import summary
from tests.recording.rows_of import row


def energy(number: int, **values: Any) -> Any:
    return row(number, gpu_joules=64.0, cpu_joules=32.0, device=5, **values)


def test_the_warm_up_is_left_out_of_all_but_bytes() -> None:
    found = summary(
        [energy(0, seconds=9.0, process=2**40), energy(1), energy(2, seconds=0.3), energy(3, storage=2**30)]
    )
    assert (found["steps"], found["steps_left_out"], found["samples"]) == (30, 10, 960)
    assert found["seconds"] == pytest.approx(1.3)
    assert found["ms_a_step"] == 50.0, "the median"
    assert found["samples_a_second"] == 640.0, "the median"
    assert (found["process"], found["storage"], found["device"]) == (2**40, 2**30, 5)
    assert (found["gpu_joules_a_sample"], found["cpu_joules_a_sample"]) == (0.2, 0.1)
    assert found["gpu_watts"] == pytest.approx(192 / 1.3)


def test_what_a_row_lacks_is_not_known() -> None:
    found = summary([energy(1), row(2)])
    assert found["gpu_joules_a_sample"] is found["cpu_watts"] is None
    assert found["device"] == 5


def test_nothing_but_the_warm_up() -> None:
    found = summary([energy(0)])
    assert found["ms_a_step"] is found["samples_a_second"] is found["gpu_joules_a_sample"] is None
    assert (found["steps"], found["steps_left_out"]) == (0, 10)
    assert summary([])["process"] is None
