"""Facts of a bound executor: shapes of its arguments and gradient requests; and arrays brought into other shapes."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.symbol import Symbol

from echo.errors import EchoError
from echo.frontend.symbols import Binding, grad_reqs

Shapes = Mapping[str, Sequence[int]]


def shapes_of(executor: mx.executor.Executor) -> dict[str, tuple[int, ...]]:
    """The shapes of an executor's arguments."""
    return {name: array.shape for name, array in zip(executor._symbol.list_arguments(), executor.arg_arrays)}


def requests_of(executor: mx.executor.Executor) -> list[str]:
    """The gradient request of each argument: write, add or null."""
    requests = grad_reqs(executor._symbol.list_arguments(), executor._grad_req)
    return [request if array is not None else "null" for request, array in zip(requests, executor.grad_arrays)]


def binding_of(executor: mx.executor.Executor) -> Binding:
    """Returns the binding of an executor: shapes, types and gradient requests of its arguments."""
    gradients = enumerate(executor.grad_arrays)
    sparse = [place for place, array in gradients if array is not None and array.stype != "default"]
    return Binding.of_arrays(executor.arg_arrays, executor.aux_arrays, requests_of(executor), sparse)


def inferred_shapes(
    symbol: Symbol, new_shapes: Mapping[str, Any]
) -> tuple[dict[str, tuple[int, ...]], tuple[tuple[int, ...], ...]]:
    """The shapes of the arguments and of the auxiliary states, inferred from those that ``reshape`` was called with.

    Raises:
        MXNetError: they contradict each other.
        EchoError: some stay unknown.
    """
    names = symbol.list_arguments()
    shapes = {name: shape for name, shape in new_shapes.items() if name in names and isinstance(shape, tuple)}
    arg_shapes, _, aux = symbol._infer_shape_impl(False, **shapes)
    if arg_shapes is None:
        raise EchoError(f"MXNet does not infer every shape from {shapes}")
    return dict(zip(names, map(tuple, arg_shapes))), tuple(map(tuple, aux))


def outgrow(shapes: Shapes, planned: Shapes) -> bool:
    """Whether some shape is longer, in any dimension, than the one that was planned."""
    return any(
        len(shape) != len(planned[name]) or any(new > old for new, old in zip(shape, planned[name]))
        for name, shape in shapes.items()
    )


def size_of(shape: Sequence[int]) -> int:
    """The number of elements."""
    return int(np.prod(shape, dtype=np.int64))


def fitted(array: Any, shape: tuple[int, ...]) -> Any:
    """The array in another shape, in the same memory if it is large enough."""
    if array is None or array.shape == shape:
        return array
    if size_of(shape) > array.size:
        return mx.nd.empty(shape, array.context, array.dtype)
    return array.reshape((-1,))[: size_of(shape)].reshape(shape)
