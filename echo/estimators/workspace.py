"""The workspaces of fused operators: memory that an operator needs while it runs, which no memory plan has.

An operator of MXNet's draws such memory from one of some spaces when it runs. A space grows to the largest that was
ever drawn from it, and is never given back. An executor draws from one of them alone; the operators of a CachedOp draw
from all of them in turn (MXNET_CPU_TEMP_COPY, MXNET_GPU_TEMP_COPY), so that each may grow to the largest in the end:
whether it does depends on how many of MXNet's own operators draw in between, which is not known.

What MXNet's own operators draw is known only when they run, as cuDNN's convolutions choose it. It counts as nothing,
in the user's graph and in others: so a plan never promises more than it saves.
"""

from __future__ import annotations

from typing import Iterator, Mapping

from echo.ir.graph import PREFIX
from echo.ir.training_graph import TrainingGraph
from echo.kernels.library import operator_workspace

_BACKENDS = {"cpu": "cpu", "gpu": "cuda"}


def workspaces(training: TrainingGraph, device: str) -> Mapping[int, int]:
    """The bytes that each fused operator of a training graph, or its gradient, draws; by the forward node's number.

    Raises:
        KernelError: a fused operator has inputs that its kernel does not take.
    """
    bytes_by_key: dict[object, int] = {}
    bytes_of: dict[int, int] = {}
    for number, kernel in _fused(training):
        node = training.nodes[number]
        types = [training.type_of(entry) for entry in node.inputs]
        shapes, dtype = tuple(tensor.shape for tensor in types), types[0].dtype
        key = kernel, tuple(node.attrs.items()), shapes, dtype
        if key not in bytes_by_key:
            bytes_by_key[key] = operator_workspace(kernel, node.attrs, shapes, dtype, _BACKENDS[device])
        bytes_of[number] = bytes_by_key[key]
    return bytes_of


def _fused(training: TrainingGraph) -> Iterator[tuple[int, str]]:
    for number, node in training.operators():
        if node.forward and node.op.startswith(PREFIX):
            yield number, node.op[len(PREFIX) :]
