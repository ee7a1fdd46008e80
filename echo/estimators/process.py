"""The peak of a training process on a CPU, as Linux counts it (VmHWM), from the parts that it is made of.

A memory plan is only a part of what users watch. Each part has a source:

``HELD``
    what the process holds before the first step, measured (VmRSS): Python, MXNet, data, and weights.
``ARRAYS``
    weights, gradients, inputs and states that a bind has yet to allocate: their shapes.
``STATES``
    what the optimizer keeps: its own arrays after the first update, or the number that the user gives.
``PLANNED``
    what MXNet's memory planner assigns to the graph. Every chunk is written to in the first steps.
``OUTSIDE``
    outputs of a Gluon block, which are no part of its plan, and what a loss outside of the graph makes of them: the
    output, its gradient, and one more array (`OUTPUT_COPIES`; measured on softmax losses over 33,278 and 8,000 words).
``SPACES``
    MXNet's temporary spaces, into which oneDNN lays out maps and weights again (`space_bytes`).
``WORKSPACES``, ``INSIDE``, ``COPIES``
    what fused operators draw, what oneDNN's RNN keeps, what clones keep: the plan has them (`echo.plans.decisions`).
``CODE``
    pages of MXNet's library and oneDNN's kernels that the first step loads, and the engine's threads: 11 MB, measured.
``SEEN``
    what the first step needed beyond these parts, measured (VmHWM): a loss outside of the graph, oneDNN's scratch
    memory for kernels wider than 14, which it unfolds, or an earlier graph. It is known only after that step.
``HOLES``
    what the C library keeps of freed arrays. MXNet allocates the arrays of a graph at each step unless it has
    ``static_alloc``, and glibc returns only blocks above its threshold, which grows up to 32 MB (with echo, 16 MiB:
    `echo.system.process`). Which holes later arrays fill depends on their order: no exact figure exists. One share of
    what is planned is assumed for all models (`HOLE_SHARE`); 0.06 to 0.5 were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

HELD, ARRAYS, STATES, PLANNED = "held by the process before", "arrays to come", "optimizer states", "planned"
OUTSIDE, SPACES, WORKSPACES = "outputs and their loss", "temporary spaces", "workspaces of fused operators"
INSIDE, COPIES = "inside of operators", "plain copies of maps"
CODE, HOLES, SEEN = "code loaded by a step", "holes of the heap", "seen in the first step beyond these"

OUTPUT_COPIES = 3
CODE_BYTES = 11 * 10**6
OWN_BYTES = 10 * 10**6  # of echo's code, its hook and its plans, which a process without echo does not hold
IMPORTED_BYTES = 143 * 10**6  # of Python with mxnet and numpy, before anything runs
NODE_BYTES = 12_000  # of one operator's node, its gradient's and their executors', in Python and in MXNet
SPACE_SHARE = 1.0  # of the largest map, or weight, that is laid out again, in the first space
FURTHER_SHARE = 0.5  # of it, in each further one: spaces are handed out in turn, and not all get the largest
HOLE_SHARE = 0.2  # of what is planned, where arrays are allocated at each step


@dataclass(frozen=True)
class ProcessPeak:
    """The predicted peak of a process in bytes, by part; parts of 0 bytes are left out."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """The bytes of all parts."""
        return sum(self.parts.values())


def process_peak(parts: Mapping[str, int], at_least: int = 0) -> ProcessPeak:
    """The peak of these parts, and of what is `SEEN` if the process is known to need ``at_least`` so many bytes."""
    seen = parts.get(SEEN, 0) + max(at_least - sum(parts.values()), 0)
    return ProcessPeak({name: size for name, size in {**parts, SEEN: seen}.items() if size})


def space_bytes(largest: int, spaces: int) -> int:
    """The bytes that are written to in MXNet's temporary spaces, of ``workspace_slots`` for one graph.

    ``largest`` is the largest map or weight that oneDNN lays out again. A space is allocated twice as large, for an
    input and an output, and half of it is written to.
    """
    return int(largest * (SPACE_SHARE + FURTHER_SHARE * (spaces - 1))) if spaces else 0


def hole_bytes(planned: int, dynamic: bool) -> int:
    """The bytes that the heap keeps alongside planned arrays; ``dynamic``: these are allocated at each step."""
    return int(HOLE_SHARE * planned) if dynamic else 0
