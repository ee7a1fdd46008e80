"""`echo.optimize` and `echo.plan` behind their lazy fronts, which do not import mxnet."""

from __future__ import annotations

import logging
import math
import operator
from dataclasses import fields
from typing import Any, Callable, Iterable, Mapping

import mxnet as mx
import numpy as np
from mxnet.gluon import Block
from mxnet.symbol import Symbol

from echo.errors import OptionError, ShapeError, UnsupportedError, did_you_mean
from echo.frontend.install import check_version
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import graph_of, infer_binding, without_marks
from echo.ir.graph import Graph
from echo.plans.frontier import Frontier
from echo.plans.options import Options, warn_of_misspelt
from echo.plans.plan import Plan
from echo.report.profile import Profile
from echo.runtime import bind_plan
from echo.runtime.bind import optimize_symbol
from echo.runtime.bind_plan import session_of
from echo.runtime.gluon import optimize_block, session_of_block
from echo.runtime.profile import budget_frontier
from echo.runtime.profile import profile as profiled
from echo.system.files import shortened
from echo.system.process import without_garbage_collection

logger = logging.getLogger("echo")
_BIND_ARGUMENTS = ("ctx", "grad_req", "type_dict")
_MOST_ELEMENTS = 2**31  # of an array of MXNet's wheels


def _split(symbol: Any, keywords: Mapping[str, Any]) -> tuple[Options, dict[str, Any], dict[str, tuple[int, ...]]]:
    if not isinstance(symbol, Symbol):
        got = type(symbol)
        raise OptionError(f"expected a Symbol or a gluon Block of mxnet, got {got.__module__}.{got.__name__}")
    check_version()
    option_names = {item.name for item in fields(Options)}
    names = set(symbol.list_arguments()) | set(symbol.list_auxiliary_states())
    # a keyword that is neither a way to bind nor an argument of the symbol must be an option, perhaps misspelt
    options = {key: value for key, value in keywords.items() if key not in names and key not in _BIND_ARGUMENTS}
    _check_known(options, names)
    ambiguous = option_names & names & set(keywords)
    options.update({key: keywords[key] for key in ambiguous if not isinstance(keywords[key], tuple)})
    parsed = _options(options)
    shapes = {key: _shape(key, value) for key, value in keywords.items() if key in names and key not in options}
    return parsed, {key: keywords[key] for key in _BIND_ARGUMENTS if key in keywords}, shapes


def _check_known(options: Iterable[str], names: Iterable[str]) -> None:
    """Raises where a keyword is neither an option nor an array of the symbol, and says what is alike."""
    option_names = [item.name for item in fields(Options)]
    unknown = sorted(set(options) - set(option_names))
    if unknown:
        expected = f"expected one of {', '.join(option_names)}, or the name of an array of the symbol"
        question = did_you_mean(unknown[0], [*option_names, *names])
        raise OptionError(f"unknown option {unknown[0]!r}, {expected}{'; ' if question else ''}{question}")


def _options(options: Mapping[str, Any]) -> Options:
    warn_of_misspelt(lambda line: logger.warning("echo: %s", line))
    parsed = Options.of(**options)
    beside = sorted(set(options) - {"plan", "strict", "fuse", "verify"})
    if parsed.plans and beside:
        raise OptionError(f"plan: it is applied as it is, expected no option {beside[0]!r} beside it")
    return parsed


def _shape(name: str, value: Any) -> tuple[int, ...]:
    """The sizes as whole numbers.

    Raises:
        ShapeError: one of them is none, or the array would have more elements than MXNet's wheels can count.
    """
    try:
        sizes = None if any(isinstance(size, bool) for size in value) else tuple(map(operator.index, value))
    except TypeError:
        sizes = None
    if sizes is None:
        raise ShapeError(f"{name}: expected a shape such as (128, 50), got {value!r}")
    if max(math.prod(sizes), *sizes, 0) >= _MOST_ELEMENTS:
        raise ShapeError(f"{name}: expected a shape of less than 2**31 elements, got {shortened(repr(value))}")
    return sizes


def optimize(symbol: Any, keywords: Mapping[str, Any]) -> Any:
    """See `echo.optimize`."""
    if isinstance(symbol, Block):
        check_version()
        return optimize_block(symbol, _options(keywords))
    options, bind, shapes = _split(symbol, keywords)
    symbol, graph = without_marks(symbol, graph_of(symbol))
    optimized = optimize_symbol(symbol, options, graph)
    if shapes:
        optimized.plans.append(bind_plan.PLANNER.plan(_session(symbol, graph, bind, shapes), options).plan)
    return optimized


def plan(symbol: Any, keywords: Mapping[str, Any]) -> Plan:
    """See `echo.plan`."""
    with without_garbage_collection():
        options, session = _ready(symbol, keywords)
        return bind_plan.PLANNER.plan(session, options).plan


def profile(symbol: Any, compare: Iterable[str], run: bool, budgets: int, keywords: Mapping[str, Any]) -> Profile:
    """See `echo.profile`."""
    with without_garbage_collection():
        options, session = _ready(symbol, keywords)
        return profiled(session, options, compare, run, budgets)


def frontier(symbol: Any, points: int, keywords: Mapping[str, Any]) -> Frontier:
    """See `echo.frontier`."""
    for name in ("memory_budget", "max_overhead", "plan"):
        if name in keywords:
            raise OptionError(f"{name}: a frontier covers all budgets and bounds, expected no option of this name")
    options, session = _ready(symbol, {**keywords, "max_overhead": None})
    return budget_frontier(session, options, points)


def _ready(symbol: Any, keywords: Mapping[str, Any]) -> tuple[Options, Callable[[], MxnetSession]]:
    """The options, and the session of a symbol or a block, both read from the user's keyword arguments."""
    if isinstance(symbol, Block):
        check_version()
        option_names = {item.name for item in fields(Options)} | {"ctx"}
        shapes = {name: _shape(name, value) for name, value in keywords.items() if name not in option_names}
        options = _options({name: value for name, value in keywords.items() if name in option_names - {"ctx"}})
        return options, session_of_block(symbol, shapes, _context(keywords.get("ctx", mx.context.current_context())))
    options, bind, shapes = _split(symbol, keywords)
    return options, _session(*without_marks(symbol, graph_of(symbol)), bind, shapes)


def _context(ctx: Any) -> mx.Context:
    try:
        return mx.Context(ctx)
    except (KeyError, TypeError):
        raise OptionError(f"ctx: expected a context of mxnet such as mx.cpu() or 'cpu', got {ctx!r}") from None


def _check_types(types: Any) -> None:
    for name, dtype in (types or {}).items():
        try:
            np.dtype(dtype)
        except TypeError:
            raise OptionError(f"type_dict: expected a numpy type for {name!r}, got {dtype!r}") from None


def _session(
    symbol: Symbol, graph: Graph, bind: Mapping[str, Any], shapes: dict[str, tuple[int, ...]]
) -> Callable[[], MxnetSession]:
    grad_req = bind.get("grad_req", _default_grad_req(symbol, shapes))
    _check_types(bind.get("type_dict"))
    binding = infer_binding(symbol, shapes, bind.get("type_dict"), grad_req)
    if all(request == "null" for request in binding.grad_req):
        raise UnsupportedError("no argument needs a gradient: nothing is trained, so there is nothing to plan")
    ctx = _context(bind.get("ctx", mx.context.current_context()))
    return session_of(graph, lambda: binding, ctx)


def _default_grad_req(symbol: Symbol, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Returns the gradient requests of MXNet's Module: all arguments but the inputs whose shapes the user gave."""
    return {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
