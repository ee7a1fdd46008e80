"""The default policy: a hill climb over classes of nodes, refined by schedules.

The climb (`echo.policies.solvers.hill_climb`) decides for whole classes of equivalent nodes, which repeat over time
steps or layers. Its choice is refined by schedules in which nodes are recomputed where they are read
(`echo.policies.solvers.ruin_recreate`). With a budget, such schedules come first, and start from the values for which
the budget has room (`echo.policies.solvers.ruin_recreate`); where they keep it, there is no climb. Nor is there one
where compute-heavy operators may be recomputed: without a budget, such a search starts from the schedule without them
(`deepened`). Graphs so small that it is cheaper have every choice tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from echo.errors import NativeError
from echo.estimators.storage_planner import Evaluation, RecomputeMask
from echo.ir.ops import spec
from echo.ir.schedule import RecomputeSchedule
from echo.policies.problem import Problem, WarmStart
from echo.policies.solvers.hill_climb import HillClimb
from echo.policies.solvers.ruin_recreate import GreedyKeep, KeepSearch, RuinRecreate, can_fit
from echo.policies.sublinear import Sublinear
from echo.system.terminal import size_text

_LARGE = 20_000  # nodes: for larger graphs without a budget, schedules take more time than planning should
# Nodes up to which schedules also start from nothing recomputed: these need up to 15 % less memory than the climb's on
# the convolutional networks of the benchmarks, of 600 to 2900 nodes, and half as much again on NMT with its 3800.
_FROM_NOTHING = 3500
_SHARE_OF_KEPT = 0.02  # of the effort, after `GreedyKeep` on larger graphs: ten times as much gains some hundredths
# Of the effort, with heavy operators: four times as much gained no bytes, twice as much no seconds.
_SHARE_OF_SMALLEST, _SHARE_WITH_HEAVY = 0.1, 0.25
# Of the effort, for each of two starts, at once: half as much led to up to 3 % more memory on DenseNet, half as much
# again to no less. The climb to one of them takes a share, and so many evaluations at least: all of the effort led to
# 0.6 % less memory at most.
_SHARE_OF_TWO, _SHARE_OF_CLIMB, _LEAST_CLIMB = 2.5, 0.1, 200
_SHARE_OF_SMALL = 0.25  # of the effort, after every choice was tried: four times as much gained nothing
_NEAR = 1.02  # times the smallest bytes: schedules that start from nothing hardly ever fit a budget below that


@dataclass(frozen=True)
class Search:
    """Least memory within ``max_seconds``; with ``max_bytes``, the fastest choice that fits."""

    name: str = "search"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        found = _found(problem)
        if not found:
            return found
        # what storage a schedule needs is exact only now: it may be more than with nothing recomputed
        return min({}, found, key=lambda schedule: problem.cost(problem.value(schedule)))


def _found(problem: Problem) -> RecomputeSchedule:
    """The best schedule that is found, by the way that suits the graph and its limits."""
    visits = len(problem.training.nodes) * len(problem.all_ranges) << min(64, len(problem.candidates))
    if visits <= problem.effort:
        best = problem.chosen(_best_of_all(problem))
        if not can_fit(problem) or (problem.max_bytes is not None and problem.keeps(problem.value(best))):
            return best
        fitted = RuinRecreate((best, {}), _SHARE_OF_SMALL).choose(problem)  # a node may run more than once, too
        return min(best, fitted, key=lambda schedule: problem.cost(problem.value(schedule)))
    # with a budget, each length of a model has another fastest choice: the warm start of one does not help others
    if problem.warm_start is not None and problem.max_bytes is None:
        warm = _warm_started(problem, problem.warm_start)
        if warm is not None:
            return warm
    if problem.light is not None:
        return deepened(problem, problem.light)
    if _runs_heavy(problem):
        return _smallest(problem) if problem.max_bytes is None else _fitted(problem)
    if can_fit(problem) and problem.max_bytes is not None:
        fitted = _fitted(problem)
        if problem.keeps(problem.value(fitted)):
            return fitted
    climbed = problem.chosen(HillClimb(_to_climb(problem)).run())
    if not can_fit(problem) or (problem.max_bytes is None and len(problem.training.nodes) > _LARGE):
        return climbed
    return min(climbed, _fit_from(problem, climbed), key=lambda schedule: problem.rank(problem.value(schedule)))


def _warm_started(problem: Problem, warm_start: WarmStart) -> RecomputeSchedule | None:
    """The better of the other graph's schedule and of a short climb; None where a search from nothing is due.

    On graphs that differ in sizes alone, as for another batch size, a climb by roles alone left up to 24 % more memory
    on the convolutional networks of the benchmarks than a search does, the other graph's schedule none.
    """
    starts = []
    same = warm_start.schedule_for(problem.training, problem.candidates)
    if same is not None:
        if problem.effort and not problem.keeps(problem.value(same)):
            return None
        starts.append(same)
    climbed = HillClimb(problem).run_from(warm_start)
    if climbed is not None:
        starts.append(problem.chosen(climbed))
    return min(starts, key=lambda schedule: problem.rank(problem.value(schedule)), default=None)


def _fits_from_nothing(problem: Problem) -> bool:
    """Whether schedules also start from nothing recomputed: for small graphs without a budget."""
    return can_fit(problem) and problem.max_bytes is None and len(problem.training.nodes) <= _FROM_NOTHING


def _to_climb(problem: Problem) -> Problem:
    """The problem with the effort of a climb."""
    if not _fits_from_nothing(problem):
        return problem
    effort = max(int(_SHARE_OF_CLIMB * problem.effort), _LEAST_CLIMB * len(problem.training.nodes))
    return replace(problem, effort=min(effort, problem.effort))


def _fit_from(problem: Problem, climbed: RecomputeSchedule) -> RecomputeSchedule:
    """Schedules that start from a choice, and from nothing recomputed where that helps."""
    if problem.max_bytes is not None:
        return RuinRecreate((climbed,)).choose(problem)
    if _fits_from_nothing(problem):
        return RuinRecreate(({}, climbed), _SHARE_OF_TWO).choose(problem)
    return RuinRecreate((climbed,), 1.0).choose(problem)


def _fitted(problem: Problem) -> RecomputeSchedule:
    """A schedule for a budget, without a climb; it breaks the limits where none was found that keeps them.

    `GreedyKeep` finds a first schedule, `RuinRecreate` improves it; for small graphs, it also starts from nothing
    recomputed.
    """
    nodes, heavy = len(problem.training.nodes), _runs_heavy(problem)
    kept = GreedyKeep().choose(problem)
    if not problem.keeps(problem.value(kept)):
        return _fitted_with_heavy(problem) if heavy else RuinRecreate().choose(problem)
    if nodes <= _FROM_NOTHING:
        return RuinRecreate((kept, {}), _SHARE_WITH_HEAVY if heavy else 0.5).choose(problem)
    return kept if nodes > _LARGE else RuinRecreate((kept,), _SHARE_OF_KEPT).choose(problem)


def _fitted_with_heavy(problem: Problem) -> RecomputeSchedule:
    """For a budget that needs heavy operators: from the smallest schedule, and mostly from nothing recomputed, too."""
    smallest = _smallest(problem)
    near = problem.max_bytes is not None and problem.max_bytes <= _NEAR * problem.value(smallest).bytes
    return RuinRecreate((smallest,) if near else (smallest, {}), _SHARE_WITH_HEAVY).choose(problem)


def _smallest(problem: Problem) -> RecomputeSchedule:
    """The fewest bytes, from deep checkpoints and from nothing recomputed; then the fewest seconds for these bytes."""
    unbounded = replace(problem, max_bytes=None)
    least = RuinRecreate((Sublinear().choose(unbounded), {}), _SHARE_OF_SMALLEST).choose(unbounded)
    return RuinRecreate((least,), _SHARE_OF_SMALLEST).choose(replace(problem, max_bytes=problem.value(least).bytes))


def _runs_heavy(problem: Problem) -> bool:
    """Whether compute-heavy operators may be recomputed, any number of times."""
    return can_fit(problem) and any(spec(problem.training.nodes[node].op).cost.heavy for node in problem.candidates)


def _best_of_all(problem: Problem) -> RecomputeMask:
    """Tries every choice: for graphs so small that this is cheaper than a climb."""
    candidates = sorted(problem.candidates)
    choices = (
        problem.choice([number for index, number in enumerate(candidates) if bits >> index & 1])
        for bits in range(1 << len(candidates))
    )
    return min(choices, key=lambda choice: problem.cost(problem.evaluate(choice, problem.all_ranges)))


# From a schedule of light operators down to the fewest bytes for which the bound on time has room.
#
# Budgets below the bytes of the light schedule are bisected: for each, `KeepSearch` finds a schedule in some passes
# over the graph, until its seconds just keep the bound. The best of these is improved by ruin and recreate. In a
# CachedOp, which plans each pass by itself, a hill climb takes their place.

_BUDGETS = 7  # that are tried
# Of graphs above `_LARGE`, fewer are: so many nodes of all of them, and one more where all of these take too long. The
# first one is at 0.625 of the light schedule's bytes: translation of 48 layers (65,000 nodes) came to 0.66 of them,
# and to 0.78 with a first one at 0.75; at 0.55 it took too long.
_NODES_OF_BUDGETS, _MOST_OF_LARGE, _LOWEST_OF_LARGE = 120_000, 4, 0.25
# Of the effort: four times as much gained 2 % of the bytes of ResNet and DenseNet, and nothing on other models.
_SHARE_OF_DEEPENED = 0.0625
# Of the light schedule's bytes, where no budget broke the bound: the deepest schedules may not be worth their seconds.
_LESS_DEEP = (0.95, 0.9, 0.8, 0.7, 0.6)
_ABOVE = 1.001  # times a budget: what counts as within it, since storage needs a little more than schedules count


def deepened(problem: Problem, light: RecomputeSchedule) -> RecomputeSchedule:
    """Returns the schedule of the least cost (`Problem.cost`) that was found, at worst the light one.

    Of that one, only candidates count: nodes were taken out that would move others.
    """
    first = {node: positions for node, positions in light.items() if node in problem.candidates}
    best = _Deepest(problem, first)
    if not can_fit(problem):
        best.consider(problem.chosen(HillClimb(problem).run()))
        return best.schedule
    nodes = len(problem.training.nodes)
    is_large = nodes > _LARGE
    tries = max(1, min(_MOST_OF_LARGE, _NODES_OF_BUDGETS // nodes)) if is_large else _BUDGETS
    try:
        search = KeepSearch(problem, is_large)
    except NativeError:
        return best.schedule
    high, is_bound = best.value.bytes, False
    low = int(_LOWEST_OF_LARGE * high) if is_large else 0
    for tried in range(tries + is_large):
        if tried == tries and best.schedule is not first:
            break
        budget = (low + high) // 2
        problem.progress(f"compute-heavy operators within {size_text(budget)}")
        value = best.consider(search.run(budget))
        in_time = problem.max_seconds is None or value.seconds <= problem.max_seconds
        is_bound = is_bound or not in_time
        if value.bytes <= _ABOVE * budget and in_time:
            high = budget
        else:
            low = max(budget, min(value.bytes, high) - 1) if in_time else budget
    if is_large:
        return best.schedule
    for part in () if is_bound else _LESS_DEEP:
        best.consider(search.run(int(part * best.light.bytes)))
    best.consider(RuinRecreate(best.starts, _SHARE_OF_DEEPENED).choose(problem))
    return best.schedule


class _Deepest:
    """The schedule of the least cost so far, of those with fewer bytes than the light one, which is the first."""

    def __init__(self, problem: Problem, light: RecomputeSchedule) -> None:
        self._problem, self.schedule = problem, light
        self.light = self.value = problem.value(light)
        self._others: list[tuple[Evaluation, RecomputeSchedule]] = []

    @property
    def starts(self) -> tuple[RecomputeSchedule, ...]:
        """Where to improve: where nothing is worth its seconds yet, what costs the least next to the light schedule."""
        if self.value is not self.light or not self._others:
            return (self.schedule,)
        _, least = min(self._others, key=lambda other: self._problem.cost(other[0]))
        return self.schedule, least

    def consider(self, schedule: RecomputeSchedule) -> Evaluation:
        value = self._problem.value(schedule)
        if value.bytes < self.light.bytes:
            self._others.append((value, schedule))
            if self._problem.cost(value) < self._problem.cost(self.value):
                self.schedule, self.value = schedule, value
        return value
