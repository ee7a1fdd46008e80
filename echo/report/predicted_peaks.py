"""The predicted peak of a training process, without echo and with it, from a plan (`echo.estimators.footprint`)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Iterator

import numpy as np

from echo.estimators import footprint as peaks
from echo.estimators.footprint import OPTIMIZER, WEIGHTS
from echo.ir.training_graph import Runner
from echo.plans.decisions import HIDDEN, LAYOUT_COPIES, WORKSPACES, Memory
from echo.plans.plan import Plan
from echo.system.terminal import size_text

NO_GPU = "the peak of the process is predicted on CPUs only"
_LAID_OUT = ("Convolution", "Deconvolution", "BatchNorm", "Pooling", "FullyConnected", "_contrib_SyncBatchNorm")
_SLOTS_VARIABLE = "MXNET_CPU_TEMP_COPY"
# the parts of the kinds of a plan that are no arrays
_PARTS = {HIDDEN: peaks.INSIDE, LAYOUT_COPIES: peaks.COPIES, WORKSPACES: peaks.WORKSPACES, OPTIMIZER: peaks.STATES}


@dataclass(frozen=True)
class Process:
    """The bytes of a process when its first training step begins, or seen since.

    ``held`` is resident memory, with the arrays of the graph unless they are still ``to_come``; ``own`` the part of it
    that echo takes. ``states`` are the optimizer's, ``outputs`` those that a Gluon block returns. ``peak`` is the most
    that the process, with echo, needed at once in its first step.
    """

    held: int
    own: int = peaks.OWN_BYTES
    to_come: bool = False
    states: int | None = None
    outputs: int = 0
    peak: int = 0


@dataclass(frozen=True)
class PredictedPeaks:
    """The predicted peaks of the process, without echo and with it.

    ``time`` is the predicted time of a step with echo as a multiple of one without it, None where it is not known;
    ``recomputation`` is the part of a step without echo that recomputation takes.
    """

    stock: peaks.ProcessPeak
    echo: peaks.ProcessPeak
    time: float | None = None
    recomputation: float = 0.0

    def __str__(self) -> str:
        words = "instead of" if self.echo.total < self.stock.total else "with echo,"
        return f"{size_text(self.echo.total)} {words} {size_text(self.stock.total)} without echo"

    def to_json(self) -> dict[str, dict[str, int]]:
        """The bytes of each part, by graph."""
        return {"stock": dict(self.stock.parts), "echo": dict(self.echo.parts)}


def predict_peaks(plan: Plan, process: Process) -> PredictedPeaks | None:
    """The peaks of a process that trains by this plan; None on a GPU (`NO_GPU`)."""
    if plan.device != "cpu":
        return None
    stock_slots, echo_slots = _slots(plan)
    parts = _parts(plan, plan.after, process, echo_slots)
    # holes come with further steps
    echo = peaks.process_peak(parts, process.peak and process.peak + parts[peaks.HOLES])
    stock = _parts(plan, plan.before, process, stock_slots)
    stock[peaks.OWN] = 0
    if plan.key.runner != Runner.DYNAMIC:  # there it is mostly the heap's, which fills its holes in another order
        stock[peaks.SEEN] = echo.parts.get(peaks.SEEN, 0)
    return PredictedPeaks(peaks.process_peak(stock), echo, plan.time and plan.time.ratio, plan.overhead)


def of_symbol(plan: Plan) -> PredictedPeaks | None:
    """The peaks of a process that trains the symbol of a plan with Module; None on a GPU, and of a Gluon block.

    Module keeps the weights in host arrays next to those of its executor.
    """
    if plan.key.runner != Runner.EXECUTOR:
        return None
    nodes = peaks.NODE_BYTES * sum(plan.key.operators.values())
    held = peaks.IMPORTED_BYTES + nodes + plan.before.static.get(WEIGHTS, 0)
    return predict_peaks(plan, Process(held + peaks.OWN_BYTES, to_come=True))


def lines(plan: Plan, found: PredictedPeaks | None) -> Iterator[str]:
    """Describes a prediction in lines of text: the peaks, and their parts."""
    if found is None:
        if plan.device != "cpu":
            yield f"peak of the process: {NO_GPU}"
        return
    yield f"peak of the process, predicted for a Module: {found}"
    for name, peak in (("without echo", found.stock), ("with echo", found.echo)):
        yield f"  {name}: {', '.join(f'{size_text(size)} {part}' for part, size in peak.parts.items())}"


def _parts(plan: Plan, memory: Memory, process: Process, slots: int) -> dict[str, int]:
    arrays = sum(size for kind, size in memory.static.items() if kind not in _PARTS)
    others = {_PARTS[kind]: size for kind, size in memory.static.items() if kind in _PARTS}
    if process.states is not None:
        others[peaks.STATES] = process.states
    return {
        peaks.HELD: max(process.held - process.own, 0),
        peaks.OWN: process.own,
        peaks.ARRAYS: arrays if process.to_come else 0,
        peaks.PLANNED: memory.planned,
        **others,
        peaks.OUTSIDE: peaks.OUTPUT_COPIES * process.outputs,
        peaks.WORKSPACE_SLOTS: peaks.workspace_slot_bytes(_largest(plan), slots),
        peaks.HOLES: peaks.hole_bytes(memory.planned, plan.key.runner == Runner.DYNAMIC),
        peaks.CODE: peaks.CODE_BYTES,
    }


def _largest(plan: Plan) -> int:
    """The bytes of the largest feature map, or matrix of weights, that oneDNN may lay out again."""
    if not any(op in plan.key.operators for op in _LAID_OUT):
        return 0
    outputs = (decision.bytes for decision in plan.decisions if decision.op in _LAID_OUT)
    weights = (
        math.prod(argument.shape) * np.dtype(argument.dtype).itemsize
        for argument in plan.key.arguments
        if argument.request in ("write", "add")
    )
    return max((*outputs, *weights), default=0)


def _slots(plan: Plan) -> tuple[int, int]:
    """Numbers of workspace slots of one graph: in MXNet's own process, and in one with echo."""
    runner, settings = plan.key.runner, plan.key.settings
    given = os.environ.get(_SLOTS_VARIABLE, "")
    default = int(given) if given.isdigit() and int(given) else {Runner.EXECUTOR: 1, Runner.SHAPED: 2}.get(runner, 4)
    return default, int(settings.get(_SLOTS_VARIABLE, default))
