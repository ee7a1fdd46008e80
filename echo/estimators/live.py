"""The most bytes alive at once under a schedule: for graphs that no storage planner of MXNet's will ever see."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Sequence

import numpy as np

from echo.errors import NativeError
from echo.estimators.evaluator import Choice, Evaluation
from echo.estimators.scheduler import LIVE, Scheduler
from echo.ir.schedule import Replayed, Splits, Step, once, replay, steps_of
from echo.ir.training_graph import TrainingGraph


class LiveEvaluator:
    """Evaluates schedules by live bytes: the native scheduler does, or `echo.ir.schedule.replay` where that is missing.

    Graphs of nodes with one output each that work nowhere in place, as `echo.ir.data_graph` reads them. Match ranges
    make no difference. Not thread-safe: one evaluator a thread.
    """

    def __init__(self, training: TrainingGraph, seconds: Sequence[float]) -> None:
        self.entries = training.first_entry[-1]
        self._training = training
        self._simulate, self._steps = _simulator(training, seconds)

    def evaluate(
        self, recompute: Choice, match_ranges: Sequence[int], limit: int | None = None, splits: Splits | None = None
    ) -> Evaluation:
        """As `Evaluator.evaluate`, exact whatever the limit."""
        value = self._simulate(self._splits(recompute, splits))
        return Evaluation((value.bytes,) * len(match_ranges), value.seconds)

    def executed(self, recompute: Choice, splits: Splits | None = None) -> Choice:
        """As `Evaluator.executed`."""
        executed = np.zeros(len(self._training.nodes), np.uint8)
        runs = Counter(step.node for step in self._steps(self._splits(recompute, splits)) if step.node != step.slot)
        for node, count in runs.items():
            executed[node] = min(count, 255)
        return executed

    def _splits(self, recompute: Choice, splits: Splits | None) -> Splits:
        # one output a node: entries have the numbers of their nodes
        return {**once(self._training, recompute.nonzero()[0].tolist()), **(splits or {})}


def _simulator(
    training: TrainingGraph, seconds: Sequence[float]
) -> tuple[Callable[[Splits], Replayed], Callable[[Splits], list[Step]]]:
    """Two functions of a schedule: one for its bytes and seconds, one for its steps."""
    try:
        scheduler = Scheduler(training, seconds, LIVE)
        return scheduler.simulate, scheduler.steps
    except NativeError:
        pass

    def simulate(splits: Splits) -> Replayed:
        steps = steps_of(training, splits)
        copies = sum(seconds[step.node] for step in steps if step.node != step.slot)
        return Replayed(replay(training, [step.node for step in steps], seconds).bytes, copies)

    return simulate, lambda splits: steps_of(training, splits)
