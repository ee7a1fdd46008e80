"""The random recurrent models that default plans are measured on, and what counts as worse."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.never_worse import is_worse, model


def row(after: int = 500, time: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"planned": 900_000, "before": 1000, "after": after, "fused": 1, "recomputed": 0, "time": time, **more}


@pytest.mark.parametrize(
    ("measured", "worse"),
    [
        (row(), False),
        (row(time=1.09), False),
        (row(time=1.11), True),
        (row(after=960, time=1.06), True),
        (row(after=960, time=1.04), False),
        (row(after=1001, time=0.5), True),
        (row(after=1001, planned=90_000), False),
        (row(after=1000, time=1.5, fused=0), False),
    ],
)
def test_plan_is_worse(measured: dict[str, Any], worse: bool) -> None:
    assert is_worse(measured) is worse


def test_models_are_the_same_in_every_run_and_differ() -> None:
    names = [model(seed).name for seed in range(12)]
    assert names == [model(seed).name for seed in range(12)]
    assert len(set(names)) > 9
    drawn = model(3)
    assert drawn.symbol.infer_shape(**drawn.shapes)[1] == [(drawn.shapes["data"][0] * drawn.shapes["data"][1], 1000)]
