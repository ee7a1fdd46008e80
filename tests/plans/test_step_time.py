"""The time of a step before and after, as a ratio and in words."""

from __future__ import annotations

import pytest

from echo.plans.step_time import StepTime


@pytest.mark.parametrize(
    ("before", "after", "ratio", "change"),
    [
        (0.2, 0.06, 0.3, "-70.0 %"),
        (0.2, 0.2, 1.0, "+0.0 %"),
        (0.05, 0.1, 2.0, "+100.0 %"),
        (0.0, 0.0, 1.0, "+0.0 %"),  # nothing was measured
    ],
)
def test_ratio_and_change(before: float, after: float, ratio: float, change: str) -> None:
    time = StepTime(before, after)
    assert time.ratio == pytest.approx(ratio)
    assert time.change == change
