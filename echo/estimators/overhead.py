"""The seconds that a recomputed node takes, and those of the whole training step.

Every distinct operator of a training graph (same op, attributes, shapes) is measured once on the user's device and
remembered in a `CostTable`. What is not measured follows the roofline: a fixed launch time plus work divided by a rate,
with the rates taken from measured operators of the same family.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import AbstractSet, Callable, Iterable, Mapping, Sequence

import numpy as np

from echo.errors import EchoError
from echo.estimators.cost_table import CostTable
from echo.estimators.roofline import Work, work
from echo.estimators.signatures import attributes, blocked_nodes, forward_node, is_blocked, is_free, signature
from echo.ir.ops import SIZE_ATTRIBUTES, spec
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode
from echo.meter.clock import LAUNCH

# Where nothing was measured: medians over the operators of NMT, LM and ResNet-50 steps, MXNet 1.9.1's profiler on two
# cores of a Xeon Scalable (4th generation). On another device only their ratios matter, until something is measured.
BYTES_PER_SECOND = 8e9
FLOPS_PER_SECOND = 8e10
# The gradients of a product are two products: 2.2 times the forward time over the convolutions of ResNet-50, 2.4 and
# 2.5 over the fully connected layers of NMT and LM. Measuring them instead was less exact: they must be cut to fit the
# time, and then do not scale.
GRADIENT_OF_PRODUCT = 2.3
# A random number for each element, on top of the bytes that a Dropout moves, where it is not measured; same origin.
DRAW_SECONDS = 3e-9

# A group of equal nodes is measured unless the roofline puts it below this part of the step; light forward nodes, whose
# seconds decide what is recomputed, down to a fifth of that.
_NEGLIGIBLE = 1e-3
_LIGHT_WEIGHT = 5.0
# Within one family, the work of two measured operators differs by at least this factor; between them, interpolation.
_SPACING = 1.7
_MEASURED_TWICE = 8
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


def estimate(training: TrainingGraph, table: CostTable, measure: MeasureFunction | None, time_limit: float) -> Overhead:
    """Costs of every node: from the table, else measured for at most ``time_limit`` seconds, else estimated.

    What matters most for the choice is measured first; what was measured is saved in the table. ``measure`` may raise
    `UnmeasurableError`, which the table remembers.
    """
    groups, group_of = _group(training)
    chosen = _worth_measuring([group for group in groups if _product(training, group.number) is None], table)
    if measure is not None:
        _measure(training, [group for group in chosen if group.key not in table], table, measure, time_limit)
    rates, drawing = (
        _Rates.of([(group, table.get(group.key)) for group in groups if group.draws == draws], table)
        for draws in (False, True)
    )
    costs = [(None if group.draws else table.get(group.key)) or rates.estimate(group) for group in groups]
    knows = [
        table.get(group.key) is not None or bool((drawing if group.draws else rates).points.get(group.family))
        for group in groups
    ]
    for index, group in enumerate(groups):
        product = _product(training, group.number)
        forward = group_of[product] if product is not None else None
        if forward is not None:
            costs[index], knows[index] = GRADIENT_OF_PRODUCT * costs[forward], knows[forward]
    measured = sum(table.get(group.key) is not None for group in groups)
    parts = _parts(training)
    seconds = tuple(0.0 if at is None else costs[at] / parts.get(number, 1) for number, at in enumerate(group_of))
    draws = (_drawing_seconds(training, group, cost, table, drawing) for group, cost in zip(groups, costs))
    step = sum(seconds) + sum(draws)
    guessed = sum(each for each, at in zip(seconds, group_of) if at is not None and not knows[at])
    return Overhead(seconds, step, measured, len(groups) - measured, guessed / step if step else 0.0)


def _measure(
    training: TrainingGraph, groups: Sequence[_Group], table: CostTable, measure: MeasureFunction, limit: float
) -> None:
    deadline = time.perf_counter() + limit
    fresh: dict[str, float] = {}
    for group in groups:
        if time.perf_counter() >= deadline:
            break
        try:
            seconds = measure(training, group.number)
        except UnmeasurableError:
            table.add(group.key, None)
        except UnavailableError:
            break
        else:
            fresh[group.key] = seconds * group.count
            _keep(table, group, seconds)
    # other work on the machine lengthens times, in bursts: what weighs most is measured once more, some time later
    for group in sorted(groups, key=lambda group: -fresh.get(group.key, 0.0))[:_MEASURED_TWICE]:
        if group.key not in fresh or time.perf_counter() >= deadline:
            break
        with contextlib.suppress(UnmeasurableError, UnavailableError):
            _keep(table, group, min(fresh[group.key] / group.count, measure(training, group.number)))
    table.save()


def _keep(table: CostTable, group: _Group, seconds: float) -> None:
    table.add(group.key, seconds)
    table.add_point(repr(group.family), group.size, seconds)


def _product(training: TrainingGraph, number: int) -> int | None:
    """The forward node of the gradient of a product, None for other nodes."""
    node = training.nodes[number]
    forward = forward_node(training, node)
    return node.control_deps[0] if forward is not None and spec(forward.op).flops is not None else None


def _parts(training: TrainingGraph) -> dict[int, int]:
    """For each gradient of a product: how many nodes share its seconds (`echo.ir.split_gradients`)."""
    products = {number: _product(training, number) for number, _ in training.operators()}
    count = Counter(products.values())
    return {number: count[product] for number, product in products.items() if product is not None}


def _drawing_seconds(training: TrainingGraph, group: _Group, cost: float, table: CostTable, rates: _Rates) -> float:
    """Seconds of a group's random draws, each beside ``cost``; no recomputation draws, as Dropout's has its mask."""
    if not group.draws:
        return 0.0
    measured = table.get(group.key)
    if measured is None and not rates.points.get(group.family):
        return group.count * training.nodes[group.number].outputs[0].elements * DRAW_SECONDS
    return group.count * max((measured or rates.estimate(group)) - cost, 0.0)


# Groups of equal nodes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """The nodes of one signature, which cost the same; ``number`` is the first of them."""

    number: int
    count: int
    key: str
    family: tuple[object, ...]
    work: Work
    light: bool
    draws: bool

    @property
    def size(self) -> float:
        """The FLOPs or bytes that the seconds of operators of this family grow with."""
        return self.work.flops or self.work.bytes


def _group(training: TrainingGraph) -> tuple[list[_Group], list[int | None]]:
    """The groups, and the group of every node (None where nothing runs)."""
    blocked = blocked_nodes(training)
    tensors = [
        [(tensor.shape, tensor.flag, number in blocked) for tensor in node.outputs]
        for number, node in enumerate(training.nodes)
    ]
    members: dict[object, list[int]] = {}
    for number, node in enumerate(training.nodes):
        if is_free(training, node):
            continue
        source = forward_node(training, node) or node
        inputs = [tensors[entry[0]][entry[1]] for entry in node.inputs]
        key = (node.op, tuple(source.attrs.items()), tuple(inputs), tuple(tensors[number]))
        members.setdefault(key, []).append(number)
    return _merge(training, members.values(), blocked)


def _merge(
    training: TrainingGraph, same: Iterable[list[int]], blocked: AbstractSet[int]
) -> tuple[list[_Group], list[int | None]]:
    # nodes of one signature may differ in annotations
    by_signature: dict[str, list[int]] = {}
    for numbers in same:
        by_signature.setdefault(signature(training, numbers[0], blocked), []).extend(numbers)
    group_of: list[int | None] = [None] * len(training.nodes)
    groups: list[_Group] = []
    for key, numbers in by_signature.items():
        for number in numbers:
            group_of[number] = len(groups)
        node = training.nodes[numbers[0]]
        light = node.forward and spec(node.op).flops is None
        family, needed = _family(training, node, blocked), work(training, node)
        groups.append(_Group(numbers[0], len(numbers), key, family, needed, light, node.random))
    return groups, group_of


def _family(training: TrainingGraph, node: TrainingNode, blocked: AbstractSet[int]) -> tuple[object, ...]:
    attrs = attributes(training, node)
    options = tuple(sorted((key, text) for key, text in attrs.items() if key not in SIZE_ATTRIBUTES))
    patterns = []
    for entry in node.inputs[:4]:
        tensor = training.type_of(entry)
        patterns.append((tensor.flag, is_blocked(training, entry, blocked), tuple(size == 1 for size in tensor.shape)))
    return (node.op, options, tuple(patterns))


def _worth_measuring(groups: Sequence[_Group], table: CostTable) -> list[_Group]:
    """The groups to measure, most important first. A member of a family is left out beside one of about its size."""
    prior = _Rates()
    weights = {
        group.key: group.count * prior.estimate(group) * (_LIGHT_WEIGHT if group.light else 1.0) for group in groups
    }
    step = sum(group.count * prior.estimate(group) for group in groups)
    chosen: list[_Group] = []
    sizes: dict[tuple[object, ...], list[float]] = {}
    for group in sorted(groups, key=lambda group: -weights[group.key]):
        family = sizes.setdefault(group.family, [size for size, _ in table.points(repr(group.family))])
        near = any(1 / _SPACING < group.size / size < _SPACING for size in family)
        if weights[group.key] >= _NEGLIGIBLE * step and not near:
            family.append(group.size)
            chosen.append(group)
    return chosen


# Rates --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rates:
    """Seconds from work: measured points of each family, and rates over all families."""

    points: Mapping[tuple[object, ...], Sequence[tuple[float, float]]] = field(default_factory=dict)
    bytes_per_second: float = BYTES_PER_SECOND
    flops_per_second: float = FLOPS_PER_SECOND

    @staticmethod
    def of(measured: Sequence[tuple[_Group, float | None]], table: CostTable) -> _Rates:
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

    def estimate(self, group: _Group) -> float:
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
