"""One call of ``simple_bind`` or ``bind`` as a value: the call itself, and the arguments that planning reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Protocol

import mxnet as mx
from mxnet.symbol import Symbol

from echo.frontend.symbols import Binding, grad_reqs, infer_binding


class Caller(Protocol):
    """Binds a symbol with the arguments of the program's call, and with all shapes where they were ``inferred``."""

    def __call__(self, bound: Symbol, inferred: Binding | None = None) -> mx.executor.Executor: ...


@dataclass(frozen=True)
class Bind:
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


def simple_bind(symbol: Symbol, original: Any, ctx: mx.Context, grad_req: Any = "write", type_dict: Any = None,
                stype_dict: Any = None, group2ctx: Any = None, shared_arg_names: Any = None, shared_exec: Any = None,
                shared_buffer: Any = None, **kwargs: Any) -> Bind:  # fmt: skip
    """A call of ``Symbol.simple_bind``; ``original`` is MXNet's own method."""

    def call(bound: Symbol, inferred: Binding | None = None) -> mx.executor.Executor:
        names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()] if inferred is not None else []
        shapes = dict(zip(names, inferred.arg_shapes + inferred.aux_shapes)) if inferred is not None else {}
        return original(bound, ctx, grad_req, type_dict, stype_dict, group2ctx, shared_arg_names, shared_exec,
                        shared_buffer, **{**kwargs, **shapes})  # fmt: skip

    def binding() -> Binding:
        known = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}  # MXNet passes over others
        shapes = {name: tuple(kwargs[name]) for name in kwargs.keys() & known if not isinstance(kwargs[name], str)}
        return infer_binding(symbol, shapes, type_dict, grad_req)

    return Bind(symbol, ctx, call, binding, _why_untouched(symbol, grad_req, group2ctx, stype_dict), shared_exec)


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
) -> Bind:
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
    return Bind(symbol, ctx, call, binding, untouched, shared_exec)


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
