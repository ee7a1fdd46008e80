"""What a tenth more memory would buy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.report.more_memory import more_memory
from tests.report.profiles import MB, made_up

MORE = "10 % more memory (up to 253.0 MB) would buy"
THAN = "than stock's; this one's takes 3.1 % more time"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ""),
        ([(200, 1.2), (253, 1.01), (254, 0.5)], f"{MORE} a plan of 253.0 MB, whose step takes 1.0 % more time {THAN}"),
        ([(220, 0.9)], f"{MORE} a plan of 220.0 MB, whose step takes 10.0 % less time {THAN}"),
        ([(200, 1.2), (300, 0.9)], f"{MORE} no time"),
        ([(300, 0.9)], f"{MORE} no time"),
    ],
)  # fmt: skip
def test_the_fastest_plan_that_fits(rows: list[tuple[int, float]], expected: str) -> None:
    frontier = tuple({"total": total * MB, "time": time, "overhead": 0.0} for total, time in rows)
    assert more_memory(replace(made_up(10), frontier=frontier)) == expected
