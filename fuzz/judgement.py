"""Whether a difference is echo's, or one that MXNet's own results have."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import numpy as np

from fuzz import training
from fuzz.outcome import Undefined

_NUDGED = 0.25  # of what echo differs by: what a nudged run differs by at least where it explains that


def verdict(wrong: Mapping[str, str], got: Any, expected: Any, again: Iterable[Any], nudged: Iterable[Any],
            exact: Iterable[Any]) -> str:  # fmt: skip
    """What is wrong, as text.

    ``got`` is the run with echo, all others are without. ``again`` and ``nudged`` are runs of the same values and of
    nudged ones, ``exact`` a run in float64, if there is one.

    Raises:
        Undefined: all that is wrong differs in one of the same values, too; or by much in a nudged one, more than fused
            operators may; or echo's is as near to the exact one as MXNet's own.
    """
    doubtful: set[str] = set()
    for run in again:
        doubtful.update(training.differences(run, expected, False, everywhere=True))
    for run in nudged:
        beyond = training.differences(run, expected, True, everywhere=True)
        doubtful.update(n for n in wrong if n in beyond and _off(run, expected, n) >= _NUDGED * _off(got, expected, n))
    if not set(wrong) <= doubtful:
        for run in exact:
            doubtful.update(name for name in wrong if _as_near(name, got, expected, run))
    if doubtful and set(wrong) <= doubtful:
        raise Undefined(", ".join(sorted(wrong)))
    return "; ".join(f"{name}: {how}" for name, how in list(wrong.items())[:4])


def _array(run: Any, name: str) -> Any:
    """What a name of a difference, such as "step 1: output 0", stands for; None where there is no such array."""
    step, _, array = name.partition(": ")
    number = step.rpartition(" ")[2]
    return run[int(number)].get(array) if array and int(number) < len(run) else None


def _off(run: Any, expected: Any, name: str) -> float:
    """How far an array is off, as part of the largest element of what is expected; infinite where that says nothing."""
    mine, its = _array(run, name), _array(expected, name)
    if mine is None or its is None or mine.shape != its.shape or its.dtype.kind != "f" or training.lost(mine, its):
        return float("inf")
    off = training.largest(mine, its)
    return float("inf") if np.isnan(off) else off


def _as_near(name: str, got: Any, expected: Any, exact: Any) -> bool:
    """Whether echo's array is as near to the exact one as MXNet's is, but for what fused operators may be off."""
    ours, its = _off(got, exact, name), _off(expected, exact, name)
    return ours < float("inf") and ours <= its + training.TOLERANCE
