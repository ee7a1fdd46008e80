"""The seconds that a recomputed node takes, and those of the whole training step.

Every distinct operator of a training graph (same op, attributes, shapes) is measured once on the user's device and
remembered in a `CostTable`. What is not measured is estimated from operators alike, or follows the roofline
(`echo.estimators.cost_table`).
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from echo.errors import EchoError
from echo.estimators.cost_table import CostTable, Rates, Roofline
from echo.estimators.operator_groups import OperatorGroup, gradient_of, groups_of, share_of
from echo.ir.training_graph import GRADIENT_SUM, TrainingGraph

# A group of equal nodes is measured unless the roofline puts it below this part of the step; light forward nodes, whose
# seconds decide what is recomputed, down to a fifth of that; gradients of products and sums of gradients, of which
# others tell enough, from five times that on.
_NEGLIGIBLE = 1e-3
_LIGHT_WEIGHT, _GRADIENT_WEIGHT = 5.0, 0.2
# Multiples of these in the order of measuring: gradients of products come last, since their products tell enough, and
# gradients of others early. That of LayerNorm takes 15 times what the roofline says. Where the time ended before it,
# fused operators seemed to save 6 % of BERT's step less, and a Transformer's plans were up to 40 % larger.
_LATER, _EARLIER = 0.1, 5.0
# Within one family, the work of two measured operators differs by at least this factor; between them, interpolation.
_SPACING = 1.7
# What takes this part of a step is measured whatever is known of others: products of 32 x 650 x 2600 took 1.67 ms where
# those of other models told 1.24, and a language model's predicted time was 0.15 of a step alongside the measured one.
_LARGE = 0.03
# Of gradients of products: from 768 x 768 to 30522 x 768, those of BERT's layers took 1.9 to 2.0 times their products.
_GRADIENT_SPACING = 12.0
_MEASURED_AGAIN, _SAME = 8, 1.05  # operators, and times as long as the first time
# Of the seconds for measuring. Without them, a sum of NMT that takes 28 times as long as its bytes suggest was measured
# once, not believed, and estimated: its 30 runs are a tenth of the step.
_FOR_DOUBTS = 0.15
_DEARER = 3.5  # times as long as measuring a product takes measuring its gradient, where it has many parameters
_PART_OF_STEP, _MOST_LONGER = 0.8, 2.5  # a limit on measuring, of the roofline's step, and of the least limit
_AGREES = 1.5  # times as long the second time, of what the roofline does not allow: a noisy time seldom comes twice
# Seconds that have to be left where something is known already, by an earlier start or of a product: the gradient of a
# GRU layer takes up to 4, and a large graph has none.
_TO_IMPROVE = 0.5
_MOST_DISTURBED = 2  # times in a row that earlier times cannot be improved since the machine is busy


class UnmeasurableError(EchoError):
    """This operator cannot be measured on its own; its cost is estimated."""


class LateError(UnmeasurableError):
    """Measuring this operator took too long: on a machine that is less busy it may not."""


class UnavailableError(EchoError):
    """No operator can be measured now, for a reason that has nothing to do with the operator."""


class Measured(NamedTuple):
    """The seconds of an operator, and those of work that measuring it took.

    ``disturbed`` says that other programs took the processor in each of its runs.
    """

    seconds: float
    spent: float = 0.0
    disturbed: bool = False


MeasureFunction = Callable[[TrainingGraph, int], Measured]


@dataclass
class Budget:
    """Seconds of work that measuring may take, and the moment by ``time.perf_counter`` at which it ends anyhow."""

    left: float
    end: float = math.inf

    def has(self, seconds: float = 0.0) -> bool:
        """Whether there is more left than so many seconds."""
        return seconds < self.left and time.perf_counter() + seconds < self.end


class Measuring:
    """Measures groups of one training graph, and puts what can be believed into a table.

    ``products`` are the keys of the products that gradients belong to.
    """

    def __init__(
        self,
        training: TrainingGraph,
        groups: Sequence[OperatorGroup],
        products: Mapping[str, str],
        table: CostTable,
        measure: MeasureFunction,
        budget: Budget,
    ) -> None:
        self._training, self._groups, self._products = training, groups, products
        self._table, self._measure, self._budget = table, measure, budget
        self._limit = min(budget.left, budget.end - time.perf_counter())
        self._times: dict[str, list[Measured]] = {}  # of this planning, by group

    def run(self) -> None:
        """Measures what is worth it, then again what is doubtful or heavy, then what an earlier start could not."""
        for group in worth_measuring(self._groups, self._table):
            if not self._first(group):
                break
        self._again()
        self._keep()
        self._improve()
        self._table.save()

    def _first(self, group: OperatorGroup) -> bool:
        """Measures a group; False where nothing can be measured any more."""
        if not self._budget.has(_FOR_DOUBTS * self._limit):
            return False
        product = self._products.get(group.key, "")
        times = self._times.get(product)
        needed = _DEARER * times[0].spent if times else _TO_IMPROVE
        if (times or product in self._table) and not self._budget.has(needed):
            return True
        try:
            measured = self._once(group)
        except UnmeasurableError as error:
            self._table.add(group.key, None, provisional=isinstance(error, LateError))
        except UnavailableError:
            return False
        else:
            # the first seconds of all have the start of the process that measures in them
            self._times[group.key] = [measured if self._times else measured._replace(spent=0.0)]
        return True

    def _once(self, group: OperatorGroup) -> Measured:
        start = time.perf_counter()
        try:
            measured = self._measure(self._training, group.number)
        except EchoError:
            self._budget.left -= time.perf_counter() - start
            raise
        self._budget.left -= measured.spent
        return measured

    def _again(self) -> None:
        """Measures some groups again, some time later: other work on the machine lengthens times, in bursts."""
        roofline = self._roofline()
        groups = [group for group in self._groups if group.key in self._times]
        doubtful = [group for group in groups if not roofline.allows(group, self._seconds(group))]
        doubtful.sort(key=lambda group: -group.count * self._seconds(group))
        queue = list(dict.fromkeys([*doubtful, *self._heaviest(groups)]))
        for group in queue:
            times = self._times[group.key]
            if not self._budget.has(times[0].spent):
                continue
            with contextlib.suppress(UnmeasurableError, UnavailableError):
                times.append(self._once(group))
                before, now = times[-2].seconds, times[-1].seconds
                if max(now, before) > _SAME * min(now, before) and queue.count(group) == 1:
                    queue.append(group)

    def _heaviest(self, groups: Sequence[OperatorGroup]) -> list[OperatorGroup]:
        """The groups that weigh most in a step, those first that are no gradients of products."""
        heaviest = sorted(groups, key=lambda group: -group.count * self._seconds(group))
        operators = [group for group in heaviest if group.product is None][:_MEASURED_AGAIN]
        return [*operators, *heaviest[:_MEASURED_AGAIN]]

    def _seconds(self, group: OperatorGroup) -> float:
        """The latest seconds of a group, which know of all runs before."""
        return self._times[group.key][-1].seconds

    def _roofline(self) -> Roofline:
        return Roofline(self._known())

    def _known(self) -> Iterator[tuple[OperatorGroup, float]]:
        for group in self._groups:
            seconds = self._seconds(group) if group.key in self._times else self._table.get(group.key)
            if seconds is not None:
                yield group, seconds

    def _keep(self) -> None:
        """Puts the times into the table, marked where they are to be measured again by a later start.

        Of a time that is too short to be believed, the least that the roofline allows is kept. Without it, a small
        operator would count as many times as long, and the seconds of the whole step as not known.
        """
        roofline = self._roofline()
        for group in self._groups:
            times = self._times.get(group.key)
            if not times:
                continue
            seconds, least = self._seconds(group), roofline.least(group)
            disturbed = all(measured.disturbed for measured in times)
            if roofline.allows(group, seconds) or (_agree(times) and not (disturbed and seconds < least)):
                self._add(group, times[-1]._replace(disturbed=disturbed))
            else:
                self._table.add(group.key, least if seconds < least else None, provisional=True)

    def _add(self, group: OperatorGroup, measured: Measured) -> None:
        self._table.add(group.key, measured.seconds, measured.disturbed)
        self._table.add_point(repr(group.family), group.size, measured.seconds)

    def _improve(self) -> None:
        """Measures again what was not believed, or disturbed, when an earlier process measured it."""
        disturbed = 0
        roofline = self._roofline()
        for group in self._groups:
            if group.key in self._times or not self._table.is_provisional(group.key):
                continue
            if disturbed == _MOST_DISTURBED or not self._budget.has(_TO_IMPROVE):
                return
            with contextlib.suppress(UnmeasurableError, UnavailableError):
                measured = self._once(group)
                disturbed = disturbed + 1 if measured.disturbed else 0
                known = self._table.get(group.key)
                if measured.disturbed and known is not None:
                    measured = measured._replace(seconds=min(known, measured.seconds))
                if roofline.allows(group, measured.seconds):
                    self._add(group, measured)


def _agree(times: Sequence[Measured]) -> bool:
    """Whether a time came twice. If other programs disturbed both, a later start measures it again."""
    seconds = [measured.seconds for measured in times]
    return len(times) > 1 and max(seconds[-2:]) <= _AGREES * min(seconds[-2:])


def worth_measuring(groups: Sequence[OperatorGroup], table: CostTable) -> list[OperatorGroup]:
    """The groups to measure, most important first.

    A member of a family is left out alongside one of about its size, unless it is a large part of the step.
    """
    if all(group.key in table for group in groups):
        return []
    prior = Rates()
    weights = {group.key: group.count * prior.estimate(group) * _weight(group) for group in groups}
    step = prior.step(groups)
    chosen: list[OperatorGroup] = []
    sizes: dict[tuple[object, ...], list[float]] = {}
    order = {group.key: weights[group.key] * _urgency(group) for group in groups}
    for group in sorted(groups, key=lambda group: -order[group.key]):
        family = sizes.setdefault(group.family, [size for size, _ in table.points(repr(group.family))])
        spacing = _GRADIENT_SPACING if _is_regular(group) else _SPACING
        near = any(1 / spacing < group.size / size < spacing for size in family)
        is_large = group.count * prior.estimate(group) >= _LARGE * step
        if weights[group.key] >= _NEGLIGIBLE * step and (is_large or not near):
            family.append(group.size)
            chosen.append(group)
    return [group for group in chosen if group.key not in table]


def _urgency(group: OperatorGroup) -> float:
    """The multiple of a group's weight by which it is measured earlier or later."""
    if _is_regular(group):
        return _LATER
    return 1.0 if group.light or group.work.flops else _EARLIER


def _weight(group: OperatorGroup) -> float:
    """How much a second of a group matters, as a multiple."""
    return _LIGHT_WEIGHT if group.light else _GRADIENT_WEIGHT if _is_regular(group) else 1.0


def _is_regular(group: OperatorGroup) -> bool:
    """Whether what it takes is known well from others: of gradients of products, and of sums of gradients."""
    return group.product is not None or group.family[0] == GRADIENT_SUM


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
        limit = min(max(time_limit, _PART_OF_STEP * Rates().step(groups)), _MOST_LONGER * time_limit)
        budget = Budget(limit, time.perf_counter() + clock_limit)
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
    groups: Sequence[OperatorGroup],
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


def _drawing_seconds(
    training: TrainingGraph, group: OperatorGroup, cost: float, table: CostTable, rates: Rates
) -> float:
    """Seconds of a group's random draws, each alongside ``cost``; no recomputation draws, as Dropout's has its mask."""
    if not group.draws:
        return 0.0
    measured = table.get(group.key)
    if measured is None and not rates.points.get(group.family):
        return group.count * training.nodes[group.number].outputs[0].elements * DRAW_SECONDS
    return group.count * max((measured or rates.estimate(group)) - cost, 0.0)
