"""Of several match ranges the one with the fewest bytes counts, of equal ones the first."""

from __future__ import annotations

import pytest

from echo.estimators.storage_planner import Evaluation


@pytest.mark.parametrize(("totals", "fewest", "best"), [((5, 3, 4), 3, 1), ((3, 5, 3), 3, 0), ((7,), 7, 0)])
def test_the_fewest_bytes(totals: tuple[int, ...], fewest: int, best: int) -> None:
    found = Evaluation(totals, 0.5)
    assert (found.bytes, found.best) == (fewest, best)
