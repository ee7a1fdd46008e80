"""The lines on the peak of the process: a prediction for the largest graph, and at the end what was seen.

The prediction waits until weights are updated again: by then the optimizer has its states, and the first step has
shown what no plan knows. MXNet is not waited for: what its threads have not done by then counts as the plan has it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
from dataclasses import replace
from typing import Any, Callable, Iterator

import mxnet as mx
import numpy as np

from echo.errors import one_line, reraise_interruption
from echo.ir.training_graph import Runner
from echo.plans.plan import Plan
from echo.report.predicted_peaks import NO_GPU, PredictedPeaks, Process, predict_peaks
from echo.runtime.patches import PATCHES
from echo.system.process import resident
from echo.system.terminal import size_text
from echo.system.threads import ONCE, Lock

logger = logging.getLogger("echo")
_MUCH_LARGER = 2  # times what was told before: as `echo.plans.plan.Summary`


class PeakPrediction:
    """Predicts the peak of the process (``found``), and follows it. Thread-safe."""

    def __init__(self) -> None:
        self.found: PredictedPeaks | None = None
        self._lock = Lock()
        self._plan: Plan | None = None  # of the largest graph, until its line is logged
        self._process = Process(0)
        self._most = self._seen = 0
        self._first: tuple[Any, Any] | None = None  # the updater and the index of the first update of a step
        self._watches = False

    def planned(self, plan: Plan) -> None:
        """A graph has this plan, and runs next."""
        if plan.device != "cpu":
            logger.log(logging.INFO if ONCE.first(NO_GPU) else logging.DEBUG, "echo: %s", NO_GPU)
            return
        with self._lock.held():
            if plan.before.planned < _MUCH_LARGER * self._most or not resident("VmRSS"):
                return
            self._most = max(plan.before.planned, 1)
            self._plan, self._first = plan, None
            self._process = Process(resident("VmRSS"), to_come=plan.key.runner == Runner.EXECUTOR)
            if not self._watches:
                self._watches = True
                PATCHES.put_for_good(mx.optimizer.Updater, "__call__", self._watched)
                atexit.register(self.log)

    def begins(self) -> None:
        """An executor trains for the first time: its arrays are there, what MXNet planned is not written to yet."""
        with self._lock.held(), self._without_errors():
            if self._plan is not None and self._process.to_come:
                self._process = replace(self._process, held=resident("VmRSS"), to_come=False)

    def returned(self, plan: Plan | None, outputs: Any) -> None:
        """A block with this plan returned these arrays at its first call."""
        with self._lock.held(), self._without_errors():
            if plan is not None and plan is self._plan:
                arrays = outputs if isinstance(outputs, list) else [outputs]
                self._process = replace(self._process, outputs=sum(map(_bytes, arrays)))

    def updates(self, updater: Any, index: Any) -> None:
        """An updater is about to update weights, one or all: a step ends where it is the same one again."""
        with self._lock.held():
            if self._plan is None:
                return
            if self._first is None:
                self._first = updater, index
            elif self._first == (updater, index):
                self._predict()

    def _predict(self) -> None:
        assert self._plan is not None
        assert self._first is not None
        states = sum(map(_bytes, self._first[0].states.values()))
        process = replace(self._process, states=states, peak=resident("VmHWM"))
        self.found = predict_peaks(self._plan, process)
        self._plan = self._first = None
        logger.info("echo: peak of the process, predicted: %s", self.found)

    def see(self, peak: int) -> None:
        """Notes that the process held so many bytes at once, before Linux's mark is reset."""
        self._seen = max(self._seen, peak)

    def log(self) -> None:
        """Logs what the process held at most, against the prediction."""
        self.see(resident("VmHWM"))
        with self._lock.held():
            if self._plan is not None and self._first is not None:  # there was one step only
                self._predict()
        if self.found is not None and self._seen:
            predicted = size_text(self.found.echo.total)
            logger.info("echo: peak of the process: %s, predicted %s", size_text(self._seen), predicted)

    @contextlib.contextmanager
    def _without_errors(self) -> Iterator[None]:
        """Has an error of echo's cost the prediction, never the training."""
        try:
            yield
        except Exception as error:
            reraise_interruption(error)
            self._plan = self._first = None
            logger.warning("echo: the peak of the process is not predicted: %s", one_line(error))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Stands in for ``Updater.__call__``, by which Module, Trainer and key-value stores update weights."""

        @functools.wraps(original)
        def call(updater: Any, index: Any, grad: Any, weight: Any) -> None:
            with self._without_errors():
                self.updates(updater, index)
            original(updater, index, grad, weight)

        return call


def _bytes(value: Any) -> int:
    """The bytes of an array, or of the arrays in a state of an optimizer."""
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    if isinstance(value, mx.nd.NDArray) and value.stype == "default":
        return int(value.size * np.dtype(value.dtype).itemsize)  # of mx.np, it is an instance
    return 0


PEAK_PREDICTION = PeakPrediction()  # of the process
