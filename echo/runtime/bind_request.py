"""What is asked of a bind: its arguments, shapes and gradients."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Protocol, Sequence

import mxnet as mx
import numpy as np
from mxnet.symbol import Symbol

from echo.errors import EchoError
from echo.frontend.symbols import Binding, grad_reqs, infer_binding, infer_shapes

# Facts of a bound executor: shapes of its arguments and gradient requests; and arrays brought into other shapes.

Shapes = Mapping[str, Sequence[int]]


def shapes_of(executor: mx.executor.Executor) -> dict[str, tuple[int, ...]]:
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
    arg_shapes, _, aux = infer_shapes(symbol, shapes)
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
    return int(np.prod(shape, dtype=np.int64))


def fitted(array: Any, shape: tuple[int, ...]) -> Any:
    """The array in another shape, in the same memory if it is large enough."""
    if array is None or array.shape == shape:
        return array
    if size_of(shape) > array.size:
        return mx.nd.empty(shape, array.context, array.dtype)
    return array.reshape((-1,))[: size_of(shape)].reshape(shape)


# One call of ``simple_bind`` or ``bind`` as a value: the call itself, and the arguments that planning reads.


class Caller(Protocol):
    """Binds a symbol with the arguments of the program's call, and with all shapes where they were ``inferred``."""

    def __call__(self, bound: Symbol, inferred: Binding | None = None) -> mx.executor.Executor: ...


@dataclass(frozen=True)
class BindRequest:
    """One call of ``simple_bind`` or ``bind``: how MXNet does it, and what planning has to know.

    ``call`` binds a symbol; one with fused operators needs the inferred shapes, since MXNet cannot infer them there.
    ``untouched`` says why the symbol is bound as it is, and is empty where it is to be planned. ``shared`` is the
    executor whose pool of memory the new one shares.
    """

    symbol: Symbol
    ctx: mx.Context
    call: Caller
    binding: Callable[[], Binding]
    untouched: str
    shared: mx.executor.Executor | None


_PARAMETERS = ("self", "ctx", "grad_req", "type_dict", "stype_dict", "group2ctx", "shared_arg_names", "shared_exec",
               "shared_buffer")  # fmt: skip


def simple_bind(symbol: Symbol, original: Any, /, ctx: mx.Context, grad_req: Any = "write", type_dict: Any = None,
                stype_dict: Any = None, group2ctx: Any = None, shared_arg_names: Any = None, shared_exec: Any = None,
                shared_buffer: Any = None, **kwargs: Any) -> BindRequest:  # fmt: skip
    """A call of ``Symbol.simple_bind``; ``original`` is MXNet's own method."""

    def call(bound: Symbol, inferred: Binding | None = None) -> mx.executor.Executor:
        names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()] if inferred is not None else []
        shapes = dict(zip(names, inferred.arg_shapes + inferred.aux_shapes)) if inferred is not None else {}
        # MXNet infers a shape that cannot be given as a keyword, or the graph is bound without fused operators
        shapes = {name: shape for name, shape in shapes.items() if name not in _PARAMETERS}
        return original(bound, ctx, grad_req, type_dict, stype_dict, group2ctx, shared_arg_names, shared_exec,
                        shared_buffer, **{**kwargs, **shapes})  # fmt: skip

    def binding() -> Binding:
        known = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}  # MXNet passes over others
        shapes = {name: tuple(kwargs[name]) for name in kwargs.keys() & known if not isinstance(kwargs[name], str)}
        return infer_binding(symbol, shapes, type_dict, grad_req)

    once = functools.lru_cache(maxsize=None)(binding)
    return BindRequest(symbol, ctx, call, once, _why_untouched(symbol, grad_req, group2ctx, stype_dict), shared_exec)


def bind(
    symbol: Symbol,
    original: Any,
    ctx: mx.Context,
    args: Any,
    args_grad: Any = None,
    grad_req: Any = "write",
    aux_states: Any = None,
    group2ctx: Any = None,
    shared_exec: Any = None,
) -> BindRequest:
    """A call of ``Symbol.bind``; ``original`` is MXNet's own method."""

    def call(bound: Symbol, inferred: Binding | None = None) -> mx.executor.Executor:
        return original(bound, ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec)

    def binding() -> Binding:
        return _binding_of_arrays(symbol, args, args_grad, grad_req, aux_states)

    untouched = _why_untouched(symbol, grad_req, group2ctx, None)
    if args_grad is None or not args_grad:
        untouched = untouched or "no argument needs a gradient"
    if any(array.stype != "default" for arrays in (args, args_grad) for array in _arrays(arrays)):
        untouched = untouched or "sparse arguments"
    return BindRequest(symbol, ctx, call, binding, untouched, shared_exec)


def _why_untouched(symbol: Symbol, grad_req: Any, group2ctx: Any, stype_dict: Any) -> str:
    if all(request == "null" for request in grad_reqs(symbol.list_arguments(), grad_req)):
        return "no argument needs a gradient"
    if group2ctx:
        return "group2ctx spreads the graph over several devices"
    if any(stype != "default" for stype in (stype_dict or {}).values()) or _has_sparse_variables(symbol):
        return "sparse arguments"
    return ""


def _has_sparse_variables(symbol: Symbol) -> bool:
    default = str(mx.ndarray.ndarray._STORAGE_TYPE_DEFAULT)
    return any(attrs.get("__storage_type__", default) != default for attrs in symbol.attr_dict().values())


def _binding_of_arrays(symbol: Symbol, args: Any, args_grad: Any, grad_req: Any, aux_states: Any) -> Binding:
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    arrays = list(_in_order(names, args))
    aux = list(_in_order(aux_names, aux_states or []))
    requests = list(grad_reqs(names, grad_req))
    gradients = dict(zip(names, _in_order(names, args_grad, optional=True)))
    requests = [request if gradients.get(name) is not None else "null" for name, request in zip(names, requests)]
    return Binding.of_arrays(arrays, aux, requests)


def _arrays(arrays: Any) -> list[Any]:
    values = arrays.values() if isinstance(arrays, Mapping) else arrays or ()
    return [array for array in values if isinstance(array, mx.nd.NDArray)]


def _in_order(names: list[str], arrays: Any, optional: bool = False) -> Iterator[Any]:
    if isinstance(arrays, Mapping):
        return (arrays.get(name) if optional else arrays[name] for name in names)
    return iter(arrays)
