"""Whether a difference is echo's, or one that MXNet's own results have."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import numpy as np

from fuzz import training
from fuzz.outcome import Undefined

_NUDGED = 0.25  # of what echo differs by: what a nudged run differs by at least where it explains that
_AS_NEAR = 2  # times as far from float64 as MXNet's own numbers are echo's at most: both are rounded by chance


def verdict(wrong: Mapping[str, str], got: Any, expected: Any, again: Iterable[Any], nudged: Iterable[Any],
            exact: Iterable[Any]) -> str:  # fmt: skip
    """The fault, as text.

    ``got`` is the run with echo, all others are without. ``again`` and ``nudged`` are runs of the same values and of
    nudged ones, ``exact`` a run in float64, if there is one.

    Raises:
        Undefined: all that is wrong comes of NaNs that MXNet's own step before had left in the parameters; or differs
            in one of the same values, too; or by much in a nudged one, more than fused operators may; or echo's is
            about as near to the exact one as MXNet's own, or that has numbers which are too large for MXNet's type.
    """
    doubtful = {name for name in wrong if _is_over(name, expected)}
    for run in again:
        doubtful.update(training.differences(run, expected, False, everywhere=True))
    for run in nudged:
        beyond = training.differences(run, expected, True, everywhere=True)
        doubtful.update(n for n in wrong if n in beyond and _off(run, expected, n) >= _NUDGED * _off(got, expected, n))
    if not set(wrong) <= doubtful:
        for run in exact:
            doubtful.update(n for n in wrong if _as_near(n, got, expected, run) or _overflows(n, expected, run))
    if doubtful and set(wrong) <= doubtful:
        raise Undefined(", ".join(sorted(wrong)))
    return "; ".join(f"{name}: {how}" for name, how in list(wrong.items())[:4])


def _array(run: Any, name: str) -> Any:
    """The array of a difference's name, such as "step 1: output 0"; None if there is no such array."""
    step, array = _step(name), name.partition(": ")[2]
    return run[step].get(array) if array and step < len(run) else None


def _off(run: Any, expected: Any, name: str) -> float:
    """How far an array is off, as part of the largest element of what is expected; infinite where that says nothing."""
    mine, its = _array(run, name), _array(expected, name)
    if mine is None or its is None or mine.shape != its.shape or its.dtype.kind != "f" or training.lost(mine, its):
        return float("inf")
    off = training.largest(mine, its)
    return float("inf") if np.isnan(off) else off


def _as_near(name: str, got: Any, expected: Any, exact: Any) -> bool:
    """Whether echo's array is about as near to the exact one as MXNet's, but for what fused operators may be off."""
    ours, its = _off(got, exact, name), _off(expected, exact, name)
    return ours < float("inf") and ours <= _AS_NEAR * its + training.TOLERANCE


def _step(name: str) -> int:
    """The step that a name of a difference is of; 0 where it is of none."""
    number = name.partition(":")[0].rpartition(" ")[2]
    return int(number) if number.isdigit() else 0


def _is_over(name: str, expected: Any) -> bool:
    """Whether MXNet's own gradients had NaNs before this step.

    oneDNN's relu makes 0 of a NaN, in float32; fused operators, and MXNet's own relu, keep it.
    """
    gradients = (its for step in expected[: _step(name)] for array, its in step.items() if "gradient" in array)
    return any(its.dtype.kind == "f" and np.isnan(its).any() for its in gradients)


def _overflows(name: str, expected: Any, exact: Any) -> bool:
    """Whether a number was too large for MXNet's own type by this step: the order of a sum then says which is a NaN."""
    steps = range(_step(name) + 1)
    found = ((exact[at].get(array), its) for at in steps for array, its in expected[at].items())
    return any(
        mine is not None and its.dtype.kind == "f" and (np.abs(mine[np.isfinite(mine)]) > np.finfo(its.dtype).max).any()
        for mine, its in found
    )
