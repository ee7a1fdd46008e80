"""Seconds from work: what operators take that were not measured, and whether a measured time can be true.

What is not measured follows the roofline: a fixed launch time plus work divided by a rate, with the rates taken from
measured operators, of the same family where there are any.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Iterable, Mapping, Sequence

import numpy as np

from echo.estimators.cost_table import CostTable
from echo.estimators.operator_groups import Group
from echo.meter.timer import LAUNCH

# Where nothing was measured: medians over the operators of NMT, LM and ResNet-50 steps, MXNet 1.9.1's profiler on two
# cores of a Xeon Scalable (4th generation). On another device only their ratios matter, until something is measured.
BYTES_PER_SECOND = 8e9
FLOPS_PER_SECOND = 8e10

# A measured time is believed at once between these multiples of the roofline's: of what it would be by the usual rate
# of other operators, and by a rate that few of them reach. What lies outside has to take as long twice.
_MOST, _LEAST = 20.0, 0.5
_FEW = 0.9  # quantile of the rates
_ENOUGH = 4  # rates of others that say what is usual on this device; with fewer, the constants do
_UNSURE = 16.0  # times by which the constants are off on other devices: from one slow core to a large server


@dataclass(frozen=True)
class Rates:
    """Seconds from work: measured points of each family, and rates over all families."""

    points: Mapping[tuple[object, ...], Sequence[tuple[float, float]]] = field(default_factory=dict)
    bytes_per_second: float = BYTES_PER_SECOND
    flops_per_second: float = FLOPS_PER_SECOND

    @staticmethod
    def of(measured: Sequence[tuple[Group, float | None]], table: CostTable) -> Rates:
        """Rates from the measurements, also those of families in other graphs; constants where there are none."""
        points = {group.family: dict(table.points(repr(group.family))) for group, _ in measured}
        computing_families = {group.family for group, _ in measured if group.work.flops}
        for group, seconds in measured:
            if seconds is not None:
                points[group.family][group.size] = seconds
        moving: list[float] = []
        computing: list[float] = []
        for family, pairs in points.items():
            rates = computing if family in computing_families else moving
            rates.extend(size / seconds for size, seconds in pairs.items())
        return Rates(
            {family: sorted(pairs.items()) for family, pairs in points.items()},
            statistics.median(moving) if moving else BYTES_PER_SECOND,
            statistics.median(computing) if computing else FLOPS_PER_SECOND,
        )

    def step(self, groups: Sequence[Group]) -> float:
        """Seconds of a step of these groups."""
        return sum(group.count * self.estimate(group) for group in groups)

    def estimate(self, group: Group) -> float:
        """Seconds of one run: between measured members of the family, else the roofline."""
        points = self.points.get(group.family)
        if points:
            return _interpolate(points, group.size)
        return LAUNCH + max(group.work.flops / self.flops_per_second, group.work.bytes / self.bytes_per_second)


def _interpolate(points: Sequence[tuple[float, float]], size: float) -> float:
    """Seconds at ``size``: a power law between two points, launch plus a constant rate outside of them."""
    below = [point for point in points if point[0] <= size]
    above = [point for point in points if point[0] > size]
    if below and above:
        (left, low), (right, high) = below[-1], above[0]
        return float(low * (high / low) ** (math.log(size / left) / math.log(right / left)))
    nearest, seconds = (below or above)[-1 if below else 0]
    launch = min(LAUNCH, seconds)
    return launch + (seconds - launch) * size / nearest


class Roofline:
    """The times that operators can take by the rates of all others that were measured with them."""

    def __init__(self, measured: Iterable[tuple[Group, float]]) -> None:
        self._rates: dict[bool, dict[str, float]] = {
            False: {},
            True: {},
        }  # by whether a group computes, then by its key
        for group, seconds in measured:
            self._rates[bool(group.work.flops)][group.key] = group.size / seconds

    def allows(self, group: Group, seconds: float) -> bool:
        """Whether a group may take so many seconds; otherwise they are worth another look."""
        flops, most_flops = self._usual_and_most(True, group.key, FLOPS_PER_SECOND)
        moved, most_moved = self._usual_and_most(False, group.key, BYTES_PER_SECOND)
        usual = LAUNCH + max(group.work.flops / flops, group.work.bytes / moved)
        least = group.work.flops / most_flops if group.work.flops else group.work.bytes / most_moved
        return _LEAST * least <= seconds <= _MOST * usual

    def _usual_and_most(self, computes: bool, key: str, constant: float) -> tuple[float, float]:
        others = [rate for name, rate in self._rates[computes].items() if name != key]
        if len(others) < _ENOUGH:
            return constant / _UNSURE, constant * _UNSURE
        return statistics.median(others), float(np.quantile(others, _FEW))
