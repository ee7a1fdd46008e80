"""The subject of planning, made from a bind: the key of its plan, its model family, and the bytes of its arrays."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, Sequence

import mxnet as mx
import numpy as np

from echo.estimators.footprint import AUXILIARY, GRADIENTS, INPUTS, WEIGHTS
from echo.frontend.device_pool import pool_settings
from echo.frontend.pointwise import FUSION_VARIABLE
from echo.frontend.setting import COPIES_VARIABLE, RNN_VARIABLES
from echo.frontend.spaces import other_spaces
from echo.frontend.symbols import Binding, type_name
from echo.ir.graph import Graph
from echo.ir.training_graph import EXECUTOR
from echo.plans.key import AUXILIARY as AUXILIARY_STATE
from echo.plans.key import Argument, PlanKey, digest, operators

# What is planned depends on them; on GPUs also on whether MXNet fuses, on CPUs on what kernels may draw.
_SETTINGS = ("NNVM_EXEC_MATCH_RANGE", "MXNET_BACKWARD_DO_MIRROR")


def arrays(binding: Binding) -> Iterator[tuple[int, str, int]]:
    """The arrays that a bind is given, which are there all the time: position, kind and bytes.

    Positions are those of the arguments, then of the auxiliary states.
    """
    arguments = zip(binding.arg_shapes, binding.arg_types, binding.grad_req)
    for place, (shape, dtype, request) in enumerate(arguments):
        size = _bytes(shape, dtype)
        yield place, INPUTS if request == "null" else WEIGHTS, size
        if request != "null":
            yield place, GRADIENTS, size
    for place, (shape, dtype) in enumerate(zip(binding.aux_shapes, binding.aux_types), len(binding.arg_shapes)):
        yield place, AUXILIARY, _bytes(shape, dtype)


def _bytes(shape: tuple[int, ...], dtype: object) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize  # type: ignore[call-overload, no-any-return]


def static_bytes(binding: Binding) -> dict[str, int]:
    """The bytes of the arrays that a bind is given, by kind."""
    sizes = {WEIGHTS: 0, GRADIENTS: 0, INPUTS: 0, AUXILIARY: 0}
    for _, kind, size in arrays(binding):
        sizes[kind] += size
    return sizes


def call_of(names: Sequence[str], binding: Binding, ctx: mx.Context) -> dict[str, Any]:
    """Describes a bind as a JSON value: shapes, types and gradient requests by name, and the device."""
    return {
        "ctx": [ctx.device_type, ctx.device_id],
        "shapes": {name: list(shape) for name, shape in zip(names, binding.arg_shapes)},
        "types": {name: type_name(dtype) for name, dtype in zip(names, binding.arg_types)},
        "grad_req": dict(zip(names, binding.grad_req)),
    }


def family(graph: Graph, binding: Binding, device: str, runner: str) -> str:
    """A text that is equal for binds that train the same arguments on one device, as a BucketingModule's lengths."""
    names = sorted(graph.variable_names)
    return json.dumps([names, sorted(set(binding.grad_req)), device, runner])


def subject(graph: Graph, binding: Binding, device: str, runner: str = EXECUTOR) -> PlanKey:
    """The key of a plan for this bind: the graph, its arguments, the device and the settings that it depends on."""
    args = list(zip(binding.arg_shapes, binding.arg_types, binding.grad_req))
    args += [(shape, dtype, AUXILIARY_STATE) for shape, dtype in zip(binding.aux_shapes, binding.aux_types)]
    names = (*_SETTINGS, *([FUSION_VARIABLE] if device == "gpu" else [COPIES_VARIABLE, *RNN_VARIABLES]))
    settings = {name: os.environ[name] for name in names if os.environ.get(name)}
    return PlanKey(
        graph=digest(graph),
        operators=operators(graph),
        arguments=tuple(Argument(shape, type_name(dtype), request) for shape, dtype, request in args),
        device=device,
        runner=runner,
        # workspaces are counted in each of the spaces
        settings={**settings, **other_spaces(device, runner), **pool_settings(device, runner)},
    )
