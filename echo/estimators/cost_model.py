"""The seconds that a recomputed node takes, and those of the whole training step.

Every distinct operator of a training graph (same op, attributes, shapes) is measured once on the user's device and
remembered in a `CostTable` (`echo.estimators.measuring`). What is not measured is estimated from operators alike, or
follows the roofline (`echo.estimators.rates`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Sequence

from echo.estimators.cost_table import CostTable
from echo.estimators.measuring import Budget, MeasureFunction, Measuring, limit_of
from echo.estimators.operator_groups import Group, gradient_of, groups_of, share_of
from echo.estimators.rates import Rates
from echo.ir.training_graph import TrainingGraph

# A random number for each element, on top of the bytes that a Dropout moves, where it is not measured: a median over
# NMT, LM and ResNet-50 steps (MXNet 1.9.1's profiler, two cores of a Xeon Scalable of the 4th generation).
DRAW_SECONDS = 3e-9
_MOST_GUESSED = 0.1  # of a step's seconds: the roofline may be off by a factor of two


@dataclass(frozen=True)
class CostModel:
    """Seconds of each training node if it runs once, and of one whole training step.

    ``measured`` and ``estimated`` count their distinct signatures. ``guessed`` is the part of the step that
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
    clock_limit: float = math.inf,
) -> CostModel:
    """Costs of every node: from the table, else measured for at most ``time_limit`` seconds of work, else estimated.

    The limit grows with the step, up to twice as long: its operators take as much longer to measure. By the clock,
    measuring ends after ``clock_limit`` seconds.
    What matters most for the choice is measured first; what was measured is saved in the table. ``measure`` may raise
    `UnmeasurableError`, which the table remembers. ``onednn``: oneDNN computes gradients.
    """
    groups, group_of = groups_of(training, onednn)
    if measure is not None:
        forward_of = {group.key: group_of[group.product] for group in groups if group.product is not None}
        products = {key: groups[forward].key for key, forward in forward_of.items() if forward is not None}
        budget = Budget(limit_of(groups, time_limit), time.perf_counter() + clock_limit)
        Measuring(training, groups, products, table, measure, budget).run()
    rates, drawing = (
        Rates.of([(group, table.get(group.key)) for group in groups if group.draws == draws], table)
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
    return CostModel(seconds, step, measured, len(groups) - measured, guessed / step if step else 0.0)


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


def _drawing_seconds(training: TrainingGraph, group: Group, cost: float, table: CostTable, rates: Rates) -> float:
    """Seconds of a group's random draws, each alongside ``cost``; no recomputation draws, as Dropout's has its mask."""
    if not group.draws:
        return 0.0
    measured = table.get(group.key)
    if measured is None and not rates.points.get(group.family):
        return group.count * training.nodes[group.number].outputs[0].elements * DRAW_SECONDS
    return group.count * max((measured or rates.estimate(group)) - cost, 0.0)
