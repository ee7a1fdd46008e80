"""The peak of live bytes, and schedules of graphs of any framework."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Callable, Iterable, Sequence

import numpy as np

from echo.errors import NativeError
from echo.estimators.storage_planner import Evaluation, RecomputeMask, StoragePlanner, flat
from echo.ir.schedule import RecomputeSchedule, Replayed, Step, once, replay, steps_of
from echo.ir.training_graph import TrainingGraph
from echo.native import planner_library

# The most bytes alive at once under a schedule: for graphs that no storage planner of MXNet's will ever see.


class LiveEvaluator:
    """Evaluates schedules by live bytes: the native scheduler does, or `echo.ir.schedule.replay` where that is missing.

    Graphs whose nodes work nowhere in place, as `echo.policies.data_graph` reads them; all outputs of a recomputed node
    are recomputed. Match ranges make no difference. Not thread-safe: one evaluator a thread.
    """

    def __init__(self, training: TrainingGraph, seconds: Sequence[float]) -> None:
        self.entries = training.first_entry[-1]
        self._training = training
        self._simulate, self._steps = _simulator(training, seconds)

    def evaluate(
        self,
        recompute: RecomputeMask,
        match_ranges: Sequence[int],
        limit: int | None = None,
        schedule: RecomputeSchedule | None = None,
    ) -> Evaluation:
        """As `Evaluator.evaluate`, exact whatever the limit."""
        value = self._simulate(self._schedule(recompute, schedule))
        return Evaluation((value.bytes,) * len(match_ranges), value.seconds)

    def executed(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None = None) -> RecomputeMask:
        """As `Evaluator.executed`."""
        executed = np.zeros(len(self._training.nodes), np.uint8)
        runs = Counter(
            step.node for step in self._steps(self._schedule(recompute, schedule)) if step.node != step.position
        )
        for node, count in runs.items():
            executed[node] = min(count, 255)
        return executed

    def _schedule(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None) -> RecomputeSchedule:
        nodes = np.unique(self._training.node_of[recompute.nonzero()[0]]).tolist()
        return {**once(self._training, nodes), **(schedule or {})}


def _simulator(
    training: TrainingGraph, seconds: Sequence[float]
) -> tuple[Callable[[RecomputeSchedule], Replayed], Callable[[RecomputeSchedule], list[Step]]]:
    """Two functions of a schedule: one for its bytes and seconds, one for its steps."""
    try:
        scheduler = Scheduler(training, seconds, LIVE)
        return scheduler.simulate, scheduler.steps
    except NativeError:
        pass

    def simulate(schedule: RecomputeSchedule) -> Replayed:
        steps = steps_of(training, schedule)
        copies = sum(seconds[step.node] for step in steps if step.node != step.position)
        return Replayed(replay(training, [step.node for step in steps], seconds).bytes, copies)

    return simulate, lambda schedule: steps_of(training, schedule)


# The native scheduler: simulates schedules, and finds the fastest within a budget.
#
# The search works on the bytes that are alive at once (`echo.ir.schedule`), with what MXNet computes in place taken
# into account. Within a budget it drops, greedily, what frees the most bytes above it for each second of recomputation,
# and takes back what turns out not to be needed; then parts of the result are ruined and recreated (Schrimpf et al.,
# 2000) as long as the effort lasts. Nodes may be recomputed any number of times, each just before it is read.

LIVE, CHUNKS = 0, 1  # echo/native/planner/schedule.h, Measure


class Scheduler:
    """Schedules of one training graph. Not thread-safe: one scheduler a thread.

    ``seconds[i]`` is the time that node i takes if it runs once more. Bytes are `LIVE`, the most alive at once, or
    `CHUNKS`, those of a storage assignment in which blocks share whole chunks and never overlap in part: for each size
    the most blocks of at least that size alive at once. Entries with ``again[entry_id] = 0`` are read where the forward
    pass left them, whatever becomes of their node; by default there are none.

    Raises:
        NativeError: the native library was not built or cannot be loaded.
    """

    def __init__(
        self, training: TrainingGraph, seconds: Sequence[float], measure: int = LIVE, again: RecomputeMask | None = None
    ) -> None:
        self._library = planner_library()
        self._planner = StoragePlanner(training, seconds)  # keeps the arrays
        self._nodes = len(training.nodes)
        mask = np.ones(self._planner.entries, np.uint8) if again is None else np.ascontiguousarray(again)
        arrays = ctypes.byref(self._planner.arrays)
        self._handle = self._library.echo_schedule_new(arrays, measure, mask.ctypes.data)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.echo_schedule_free(handle)

    def end_in(self, seconds: float) -> None:
        """Makes searches end in so many seconds, with the best schedule found until then."""
        self._library.echo_schedule_end_in(self._handle, seconds)

    def simulate(self, schedule: RecomputeSchedule) -> Replayed:
        """Bytes by the measure, and the seconds of all copies."""
        self._set(schedule)
        total = ctypes.c_int64()
        seconds = self._library.echo_schedule_simulate(self._handle, ctypes.byref(total))
        return Replayed(total.value, seconds)

    def steps(self, schedule: RecomputeSchedule) -> list[Step]:
        """The steps of a training step, in order (`echo.ir.schedule.steps_of`)."""
        self.simulate(schedule)
        count = self._library.echo_schedule_steps(self._handle, 0, None, None)
        node, position = np.empty(count, np.int32), np.empty(count, np.int32)
        self._library.echo_schedule_steps(self._handle, count, node.ctypes.data, position.ctypes.data)
        return [Step(int(a), int(b)) for a, b in zip(node, position)]

    def fit(
        self, candidates: Iterable[int], budget: int, effort: int, start: RecomputeSchedule | None = None
    ) -> tuple[RecomputeSchedule, Replayed]:
        """The fastest schedule of at most ``budget`` bytes that recomputes only candidates.

        ``effort`` bounds the simulations, ``start`` is a schedule to begin with. Where nothing fits, the last attempt
        that came nearest comes back.
        """
        return self._search("echo_schedule_fit", candidates, budget, effort, start)

    def least(
        self,
        candidates: Iterable[int],
        max_seconds: float,
        effort: int,
        start: RecomputeSchedule | None = None,
        price: float = 0.0,
    ) -> tuple[RecomputeSchedule, Replayed]:
        """The schedule of the fewest bytes that recomputes only candidates, for at most ``max_seconds``.

        It goes down from ``start``, which must keep that bound; ``effort`` bounds the simulations. Of all schedules on
        the way, the one is taken whose bytes are the fewest where a second costs ``price`` bytes.
        """
        return self._search("echo_schedule_least", candidates, max_seconds, effort, start, price)

    def keep(self, schedule: RecomputeSchedule, budget: int, passes: int = 6) -> tuple[RecomputeSchedule, Replayed]:
        """The schedule less the copies that ``budget`` bytes make needless, those that save the most time first.

        It takes some passes over the schedule, not a search; one that needs more than the budget comes back as it is.
        """
        self._set(schedule)
        total = ctypes.c_int64()
        seconds = self._library.echo_schedule_keep(self._handle, budget, passes, ctypes.byref(total))
        return self._get(), Replayed(total.value, seconds)

    def _search(
        self,
        function: str,
        candidates: Iterable[int],
        limit: float,
        effort: int,
        start: RecomputeSchedule | None,
        *prices: float,
    ) -> tuple[RecomputeSchedule, Replayed]:
        self._set(start or {})
        candidate = np.zeros(self._nodes, np.uint8)
        candidate[list(candidates)] = 1
        total = ctypes.c_int64()
        search = getattr(self._library, function)
        seconds = search(self._handle, candidate.ctypes.data, limit, effort, *prices, ctypes.byref(total))
        return self._get(), Replayed(total.value, seconds)

    def _set(self, schedule: RecomputeSchedule) -> None:
        node, position = flat(schedule)
        self._library.echo_schedule_set(self._handle, len(node), node.ctypes.data, position.ctypes.data)

    def _get(self) -> RecomputeSchedule:
        count = self._library.echo_schedule_get(self._handle, 0, None, None)
        node, position = np.empty(count, np.int32), np.empty(count, np.int32)
        self._library.echo_schedule_get(self._handle, count, node.ctypes.data, position.ctypes.data)
        schedule: dict[int, list[int]] = {}
        for number, start in zip(node.tolist(), position.tolist()):
            schedule.setdefault(number, []).append(start)
        return {number: tuple(positions) for number, positions in schedule.items()}
