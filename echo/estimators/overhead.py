"""What a recomputed node costs, and what the whole training step costs.

Every distinct operator of a training graph (same op, attributes, shapes) is measured once on the user's device and
remembered in a `CostTable`. What is not measured follows the roofline: a fixed launch time plus work divided by a rate,
with the rates taken from measured operators of the same family.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from echo.errors import EchoError
from echo.estimators.cost_table import CostTable
from echo.graph import Entry
from echo.training_graph import TrainingGraph, TrainingNode

# Where nothing was measured: medians over the operators of NMT, LM and ResNet-50 steps, MXNet 1.9.1's profiler on two
# cores of a Xeon Scalable (4th generation). On any other device only their ratios matter, until something is measured.
LAUNCH = 6e-6
BYTES_PER_SECOND = 1.0e10
FLOPS_PER_SECOND = 8.0e10

HEAVY_OPS = frozenset({
    "Convolution", "Deconvolution", "FullyConnected", "RNN", "dot", "batch_dot", "_linalg_gemm", "_linalg_gemm2",
    "_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_selfatt_valatt",
    "_contrib_interleaved_matmul_encdec_qk", "_contrib_interleaved_matmul_encdec_valatt", "Correlation",
})  # fmt: skip

# Attributes that say how large something is: operators that differ in these alone belong to one family.
_SIZES = frozenset({
    "num_filter", "num_hidden", "num_outputs", "num_args", "input_dim", "output_dim", "shape", "begin", "end",
    "state_size", "workspace", "layout",
})  # fmt: skip
_BACKWARD = "_backward_"
# oneDNN computes these in its own blocked layouts and hands those on; a plain layout then costs another time
_BLOCKED_SOURCES = frozenset({"Convolution", "Deconvolution"})
_BLOCKED_KEEPERS = frozenset({
    "BatchNorm", "Activation", "Pooling", "Concat", "elemwise_add", "_plus", "add_n", "ElementWiseSum", "LRN", "_copy",
})  # fmt: skip
MeasureFunction = Callable[[TrainingGraph, int], float]


class UnmeasurableError(EchoError):
    """This operator cannot be measured on its own; its cost is estimated."""


@dataclass(frozen=True)
class Overhead:
    """Seconds of each training node if it runs once, and of one whole training step.

    ``measured`` and ``estimated`` count the distinct signatures behind them.
    """

    seconds: tuple[float, ...]
    step_seconds: float
    measured: int
    estimated: int


# Signatures: what makes two nodes cost the same -------------------------------------------------------------


def signature(training: TrainingGraph, number: int) -> str:
    """A stable key of what a node computes: op, attributes that matter, types of inputs and outputs. No names."""
    node = training.nodes[number]
    attrs = _attributes(training, node)
    inputs = ",".join(_kind(training, entry) for entry in node.inputs)
    outputs = ",".join(map(str, node.outputs))
    unused = _unused_outputs(training, number)
    options = " ".join(f"{key}={attrs[key]}" for key in sorted(attrs))
    return f"{node.op}({inputs})->{outputs}" + (f" {options}" if options else "") + (f" -{unused}" if unused else "")


def forward_node(training: TrainingGraph, node: TrainingNode) -> TrainingNode | None:
    """The forward node that a gradient node belongs to, None where there is none or it is not known."""
    if node.forward or not node.control_deps:
        return None
    return training.nodes[node.control_deps[0]]


def _attributes(training: TrainingGraph, node: TrainingNode) -> dict[str, str]:
    source = forward_node(training, node) or node
    return {key: text for key, text in source.attrs.items() if not key.startswith("__")}
