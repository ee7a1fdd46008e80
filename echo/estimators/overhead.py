"""The seconds that a recomputed node takes, and those of the whole training step.

Every distinct operator of a training graph (same op, attributes, shapes) is measured once on the user's device and
remembered in a `CostTable`. What is not measured follows the roofline: a fixed launch time plus work divided by a rate,
with the rates taken from measured operators of the same family.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import Callable, Mapping, Sequence

import numpy as np

from echo.errors import EchoError
from echo.estimators.cost_table import CostTable
from echo.estimators.groups import Group, groups_of
from echo.estimators.products import gradient_of, share_of
from echo.ir.training_graph import GRADIENT_SUM, TrainingGraph
from echo.meter.clock import LAUNCH

# Where nothing was measured: medians over the operators of NMT, LM and ResNet-50 steps, MXNet 1.9.1's profiler on two
# cores of a Xeon Scalable (4th generation). On another device only their ratios matter, until something is measured.
BYTES_PER_SECOND = 8e9
FLOPS_PER_SECOND = 8e10
# A random number for each element, on top of the bytes that a Dropout moves, where it is not measured; same origin.
DRAW_SECONDS = 3e-9

# A group of equal nodes is measured unless the roofline puts it below this part of the step; light forward nodes, whose
# seconds decide what is recomputed, down to a fifth of that; gradients of products and sums of gradients, of which
# others tell enough, from five times that on.
_NEGLIGIBLE = 1e-3
_LIGHT_WEIGHT, _GRADIENT_WEIGHT = 5.0, 0.2
# Within one family, the work of two measured operators differs by at least this factor; between them, interpolation.
_SPACING = 1.7
# What takes this part of a step is measured whatever is known of others: products of 32 x 650 x 2600 took 1.67 ms where
# those of other models told 1.24, and a language model's predicted time was 0.15 of a step beside the measured one.
_LARGE = 0.03
# Of gradients of products: from 768 x 768 to 30522 x 768, those of BERT's layers took 1.9 to 2.0 times their products.
_GRADIENT_SPACING = 12.0
_MEASURED_AGAIN, _SAME = 8, 1.05  # operators, and times as long as the first time
_DEARER = 3.5  # times as long as measuring a product takes measuring its gradient, where it has many parameters
_PART_OF_STEP, MOST_LONGER = 0.8, 2.0  # a limit on measuring, of the roofline's step, and of the least limit
_MOST_GUESSED = 0.1  # of a step's seconds: the roofline may be off by a factor of two

MeasureFunction = Callable[[TrainingGraph, int], float]


class UnmeasurableError(EchoError):
    """This operator cannot be measured on its own; its cost is estimated."""


class UnavailableError(EchoError):
    """No operator can be measured now, for a reason that has nothing to do with the operator."""


@dataclass(frozen=True)
class Overhead:
    """Seconds of each training node if it runs once, and of one whole training step.

    ``measured`` and ``estimated`` count the distinct signatures behind them. ``guessed`` is the part of the step that
    operators take of which none alike was measured, at any size.
    """

    seconds: tuple[float, ...]
    step_seconds: float
    measured: int
    estimated: int
    guessed: float = 0.0

    @property
    def is_timed(self) -> bool:
        """Whether the seconds of a step are known well enough to be told, and to prefer one graph to another."""
        return self.measured > 0 and self.guessed <= _MOST_GUESSED


def estimate(
    training: TrainingGraph,
    table: CostTable,
    measure: MeasureFunction | None,
    time_limit: float,
    onednn: bool = False,
) -> Overhead:
    """Costs of every node: from the table, else measured for at most ``time_limit`` seconds, else estimated.

    The limit grows with the step, up to twice as long: its operators take as much longer to measure.
    What matters most for the choice is measured first; what was measured is saved in the table. ``measure`` may raise
    `UnmeasurableError`, which the table remembers. ``onednn``: oneDNN computes gradients.
    """
    groups, group_of = groups_of(training, onednn)
    chosen = _worth_measuring(groups, table)
    if measure is not None:
        forward_of = {group.key: group_of[group.product] for group in groups if group.product is not None}
        products = {key: groups[forward].key for key, forward in forward_of.items() if forward is not None}
        asked = [group for group in chosen if group.key not in table]
        longer = min(max(time_limit, _PART_OF_STEP * _Rates().step(groups)), MOST_LONGER * time_limit)
        _measure(training, asked, products, table, measure, longer)
    rates, drawing = (
        _Rates.of([(group, table.get(group.key)) for group in groups if group.draws == draws], table)
        for draws in (False, True)
    )
    costs = [(None if group.draws else table.get(group.key)) or rates.estimate(group) for group in groups]
    knows = [
        table.get(group.key) is not None or bool((drawing if group.draws else rates).points.get(group.family))
        for group in groups
    ]
    _follow_products(training, groups, group_of, table, costs, knows)
    measured = sum(table.get(group.key) is not None for group in groups)
    seconds = tuple(0.0 if at is None else costs[at] for at in group_of)
    draws = (_drawing_seconds(training, group, cost, table, drawing) for group, cost in zip(groups, costs))
    step = sum(seconds) + sum(draws)
    guessed = sum(each for each, at in zip(seconds, group_of) if at is not None and not knows[at])
    return Overhead(seconds, step, measured, len(groups) - measured, guessed / step if step else 0.0)


def _follow_products(
    training: TrainingGraph,
    groups: Sequence[Group],
    group_of: Sequence[int | None],
    table: CostTable,
    costs: list[float],
    knows: list[bool],
) -> None:
    """Puts in what gradients of products take that were not measured, by those that were and by their products."""
    known: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    unknown: list[tuple[int, int, tuple[object, ...]]] = []
    for index, group in enumerate(groups):
        forward = None if group.product is None else group_of[group.product]
        if forward is None:
            continue
        kind = (*group.family[:-1], *groups[forward].family[:-1])  # of any regime
        if table.get(group.key) is not None:
            known.setdefault(kind, []).append((group.size, costs[index] / costs[forward]))
        else:
            unknown.append((index, forward, kind))
    for index, forward, kind in unknown:
        share = share_of(training.nodes[groups[forward].number].op, groups[index].read)
        costs[index] = gradient_of(costs[forward], groups[index].size, known.get(kind, ()), share)
        knows[index] = knows[forward]


def _measure(
    training: TrainingGraph,
    groups: Sequence[Group],
    products: Mapping[str, str],
    table: CostTable,
    measure: MeasureFunction,
    limit: float,
) -> None:
    """Measures groups in their order; ``products`` are the keys of the products that gradients belong to."""
    deadline = time.perf_counter() + limit
    fresh: dict[str, float] = {}
    took: dict[str, float] = {}
    for group in groups:
        start = time.perf_counter()
        if start >= deadline:
            break
        if start + _DEARER * took.get(products.get(group.key, ""), 0.0) >= deadline:
            continue
        try:
            seconds = measure(training, group.number)
        except UnmeasurableError:
            table.add(group.key, None)
        except UnavailableError:
            break
        else:
            # the first seconds of all have the start of the process that measures in them
            took[group.key] = time.perf_counter() - start if fresh else 0.0
            fresh[group.key] = seconds * group.count
            _keep(table, group, seconds)
    again = _heaviest([group for group in groups if group.key in fresh], fresh)
    for group in again:
        if time.perf_counter() + took[group.key] >= deadline:
            continue
        with contextlib.suppress(UnmeasurableError, UnavailableError):
            seconds, before = measure(training, group.number), fresh[group.key] / group.count
            fresh[group.key] = group.count * seconds
            _keep(table, group, seconds)
            if max(seconds, before) > _SAME * min(seconds, before) and again.count(group) == 1:
                again.append(group)
    table.save()


def _heaviest(groups: Sequence[Group], seconds: Mapping[str, float]) -> list[Group]:
    """The groups that weigh most in a step, those first that are no gradients of products.

    They are measured again, some time later: other work on the machine lengthens times, in bursts.
    """
    heaviest = sorted(groups, key=lambda group: -seconds[group.key])
    operators = [group for group in heaviest if group.product is None][:_MEASURED_AGAIN]
    return list(dict.fromkeys([*operators, *heaviest[:_MEASURED_AGAIN]]))


def _keep(table: CostTable, group: Group, seconds: float) -> None:
    table.add(group.key, seconds)
    table.add_point(repr(group.family), group.size, seconds)


def _drawing_seconds(training: TrainingGraph, group: Group, cost: float, table: CostTable, rates: _Rates) -> float:
    """Seconds of a group's random draws, each beside ``cost``; no recomputation draws, as Dropout's has its mask."""
    if not group.draws:
        return 0.0
    measured = table.get(group.key)
    if measured is None and not rates.points.get(group.family):
        return group.count * training.nodes[group.number].outputs[0].elements * DRAW_SECONDS
    return group.count * max((measured or rates.estimate(group)) - cost, 0.0)


def _worth_measuring(groups: Sequence[Group], table: CostTable) -> list[Group]:
    """The groups to measure, most important first.

    A member of a family is left out beside one of about its size, unless it is a large part of the step.
    """
    prior = _Rates()
    weights = {group.key: group.count * prior.estimate(group) * _weight(group) for group in groups}
    step = prior.step(groups)
    chosen: list[Group] = []
    sizes: dict[tuple[object, ...], list[float]] = {}
    for group in sorted(groups, key=lambda group: -weights[group.key]):
        family = sizes.setdefault(group.family, [size for size, _ in table.points(repr(group.family))])
        spacing = _GRADIENT_SPACING if _is_regular(group) else _SPACING
        near = any(1 / spacing < group.size / size < spacing for size in family)
        is_large = group.count * prior.estimate(group) >= _LARGE * step
        if weights[group.key] >= _NEGLIGIBLE * step and (is_large or not near):
            family.append(group.size)
            chosen.append(group)
    return chosen


def _weight(group: Group) -> float:
    """How much a second of a group matters, as a multiple."""
    return _LIGHT_WEIGHT if group.light else _GRADIENT_WEIGHT if _is_regular(group) else 1.0


def _is_regular(group: Group) -> bool:
    """Whether what it takes is known well from others: of gradients of products, and of sums of gradients."""
    return group.product is not None or group.family[0] == GRADIENT_SUM


# Rates --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rates:
    """Seconds from work: measured points of each family, and rates over all families."""

    points: Mapping[tuple[object, ...], Sequence[tuple[float, float]]] = field(default_factory=dict)
    bytes_per_second: float = BYTES_PER_SECOND
    flops_per_second: float = FLOPS_PER_SECOND

    @staticmethod
    def of(measured: Sequence[tuple[Group, float | None]], table: CostTable) -> _Rates:
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
        return _Rates(
            {family: sorted(pairs.items()) for family, pairs in points.items()},
            float(np.median(moving)) if moving else BYTES_PER_SECOND,
            float(np.median(computing)) if computing else FLOPS_PER_SECOND,
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
