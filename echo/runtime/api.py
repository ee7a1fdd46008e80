"""`echo.optimize` and `echo.plan`, called by lazy functions that do not import mxnet."""

from __future__ import annotations

import logging
import math
import operator
from dataclasses import replace
from typing import Any, Callable, Collection, Dict, Iterable, Mapping, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block
from mxnet.symbol import Symbol

from echo.errors import OptionError, ShapeError, UnsupportedError, did_you_mean
from echo.frontend.framework import MxnetFramework
from echo.frontend.install import check_version
from echo.frontend.symbols import graph_of, infer_binding, without_marks
from echo.ir.graph import Graph
from echo.plans.frontier import Frontier
from echo.plans.options import OPTION_NAMES, Options
from echo.plans.plan import Plan
from echo.plans.variables import warn_of_misspelt
from echo.report.profile import Profile
from echo.runtime import bind_plan
from echo.runtime.bind import optimize_symbol
from echo.runtime.bind_plan import framework_of
from echo.runtime.gluon import framework_of_block, optimize_block, unhybridized_note
from echo.runtime.profile import budget_frontier
from echo.runtime.profile import profile as profiled
from echo.system.files import shortened
from echo.system.process import without_garbage_collection

logger = logging.getLogger("echo")
_DEFAULTS = Options()
_BIND_ARGUMENTS = ("ctx", "grad_req", "type_dict")
_RENAMED = {"points": "budgets"}  # keywords of release candidates
_MOST_ELEMENTS = 2**31  # of an array of MXNet's wheels

_Shapes = Dict[str, Tuple[int, ...]]


def _split(symbol: Any, keywords: Mapping[str, Any]) -> tuple[Options, dict[str, Any], _Shapes]:
    """Returns the options, the arguments of a bind and the shapes of a call of one of echo's functions."""
    if not isinstance(symbol, Symbol):
        got = type(symbol)
        name = got.__qualname__ if got.__module__ == "builtins" else f"{got.__module__}.{got.__qualname__}"
        raise OptionError(f"expected a Symbol or a gluon Block of mxnet, got {'None' if symbol is None else name}")
    check_version()
    names = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}
    # a keyword that is neither an option nor an argument of the symbol must be an option that is misspelt
    _check_known(keywords, names)
    shapes = _shapes_of(keywords, names)
    bind = {name: keywords[name] for name in _BIND_ARGUMENTS if keywords.get(name) is not None}
    return _options(keywords, names), bind, shapes


def _check_known(keywords: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises where a keyword is neither an option nor an array of the symbol, and says what is alike."""
    unknown, options = sorted(set(keywords["arrays"]) - set(names)), [each for each in OPTION_NAMES if each in keywords]
    if not unknown:
        return
    name = unknown[0]
    if name in OPTION_NAMES:
        raise OptionError(f"{name}: this function does not take this option")
    if name in _RENAMED:
        raise OptionError(f"{name}: this option is now {_RENAMED[name]!r}")
    expected = f"expected one of {', '.join(options)}, or the name of an array of the symbol"
    raise OptionError(f"unknown option {name!r}, {expected}{did_you_mean(name, [*options, *names], '; ')}")


def _shapes_of(keywords: Mapping[str, Any], names: Collection[str] | None = None) -> _Shapes:
    """Returns the shapes of keywords and of ``shapes``; all ``names`` are allowed if None."""
    given, arrays = keywords["shapes"], keywords["arrays"]
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"shapes: expected a mapping such as {{'data': (128, 50)}}, got {given!r}")
    given = given or {}
    for name in given:
        if not isinstance(name, str):
            raise OptionError(f"shapes: expected names of arrays, got {name!r}")
        if name in arrays:
            raise OptionError(f"shapes: {name!r} is also given as a keyword, expected it once")
    if names is not None:
        _check_names("shapes", given, names)
    return {name: _shape(name, value) for name, value in {**arrays, **given}.items()}


def _options(keywords: Mapping[str, Any], names: Collection[str] = ()) -> Options:
    """Returns the options among the keywords; ``names`` are those of the symbol's arrays."""
    warn_of_misspelt(lambda line: logger.warning("echo: %s", line))
    options = {name: keywords[name] for name in OPTION_NAMES if name in keywords}
    try:
        parsed = Options.of(**options)
    except OptionError as error:
        name = str(error).partition(":")[0]
        if name not in names:
            raise
        hint = f"shapes={{{name!r}: ...}} gives the shape of the array of this name"
        raise OptionError(f"{error}; {hint}") from None
    others = [name for name in sorted(options) if getattr(parsed, name) != getattr(_DEFAULTS, name)]
    others = [name for name in others if name not in ("plan", "strict", "fuse", "exact", "verify", "max_planning")]
    if parsed.plans and others:
        raise OptionError(f"plan: it is applied as it is, expected no option {others[0]!r} next to it")
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
        raise ShapeError(f"{name}: expected a shape such as (128, 50), got {shortened(' '.join(repr(value).split()))}")
    if max(math.prod(sizes), *sizes, 0) >= _MOST_ELEMENTS:
        raise ShapeError(f"{name}: expected a shape of less than 2**31 elements, got {shortened(repr(value))}")
    return sizes


def optimize(symbol: Any, **keywords: Any) -> Any:
    """See `echo.optimize`."""
    if isinstance(symbol, Block):
        check_version()
        _check_known(keywords, ())
        for name in (*_BIND_ARGUMENTS, "shapes"):
            if keywords[name] is not None:
                raise OptionError(f"{name}: a block plans for the arrays that it is called with, expected none")
        return optimize_block(symbol, _options(keywords))
    options, bind, shapes = _split(symbol, keywords)
    symbol, graph = without_marks(symbol, graph_of(symbol))
    optimized = optimize_symbol(symbol, options, graph)
    if shapes:
        optimized.plans.append(bind_plan.PLANNER.plan(_session(symbol, graph, bind, shapes), options).plan)
    return optimized


def plan(symbol: Any, **keywords: Any) -> Plan:
    """See `echo.plan`."""
    with without_garbage_collection():
        return _plan(symbol, keywords)


def _plan(symbol: Any, keywords: Mapping[str, Any]) -> Plan:
    # apart, so that a training graph is freed before Python searches for garbage again
    options, make_framework = _ready(symbol, keywords)
    found = bind_plan.PLANNER.plan(make_framework, options).plan
    notes = () if isinstance(symbol, Symbol) else unhybridized_note(symbol)
    return replace(found, notes=(*found.notes, *notes)) if notes else found


def profile(symbol: Any, compare: Iterable[str], run: bool, budgets: int, **keywords: Any) -> Profile:
    """See `echo.profile`."""
    with without_garbage_collection():
        options, make_framework = _ready(symbol, keywords)
        return profiled(make_framework, options, compare, run, budgets)


def frontier(symbol: Any, budgets: int, **keywords: Any) -> Frontier:
    """See `echo.frontier`."""
    for name in ("memory_budget", "max_overhead", "max_time", "plan"):
        if name in keywords["arrays"]:
            raise OptionError(f"{name}: a frontier covers all budgets and bounds, expected no option of this name")
    options, make_framework = _ready(symbol, keywords)
    return budget_frontier(make_framework, options, budgets)


def _ready(symbol: Any, keywords: Mapping[str, Any]) -> tuple[Options, Callable[[], MxnetFramework]]:
    """The options, and what makes the framework of a symbol or a block, both from the user's keyword arguments."""
    if isinstance(symbol, Block):
        check_version()
        for name in ("grad_req", "type_dict"):
            if keywords[name] is not None:
                raise OptionError(f"{name}: the parameters of a block have their own, expected none")
        context = _context(mx.context.current_context() if keywords["ctx"] is None else keywords["ctx"])
        return _options(keywords), framework_of_block(symbol, _shapes_of(keywords), context)
    options, bind, shapes = _split(symbol, keywords)
    return options, _session(*without_marks(symbol, graph_of(symbol)), bind, shapes)


def _context(ctx: Any) -> mx.Context:
    try:
        return mx.Context(ctx)
    except (KeyError, TypeError):
        raise OptionError(f"ctx: expected a context of mxnet such as mx.cpu() or 'cpu', got {ctx!r}") from None


def _check_names(option: str, given: Any, names: Collection[str]) -> None:
    """Raises `OptionError` for a name in a mapping that is none of ``names``, those of a symbol's arrays."""
    for name in given if isinstance(given, Mapping) else ():
        if name not in names:
            raise OptionError(f"{option}: the symbol has no array {name!r}{did_you_mean(str(name), names, '; ')}")


def _check_types(types: Any) -> None:
    if types is not None and not isinstance(types, Mapping):
        raise OptionError(f"type_dict: expected a mapping such as {{'data': 'float16'}}, got {types!r}")
    for name, dtype in (types or {}).items():
        try:
            np.dtype("no type" if dtype is None else dtype)  # None is numpy's default
        except TypeError:
            raise OptionError(f"type_dict: expected a numpy type for {name!r}, got {dtype!r}") from None


def _session(
    symbol: Symbol, graph: Graph, bind: Mapping[str, Any], shapes: dict[str, tuple[int, ...]]
) -> Callable[[], MxnetFramework]:
    grad_req = bind.get("grad_req", _default_grad_req(symbol, shapes))
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    _check_names("grad_req", grad_req, names)
    _check_names("type_dict", bind.get("type_dict"), names)
    _check_types(bind.get("type_dict"))
    binding = infer_binding(symbol, shapes, bind.get("type_dict"), grad_req)
    if all(request == "null" for request in binding.grad_req):
        raise UnsupportedError("no argument needs a gradient: nothing is trained, so there is nothing to plan")
    ctx = _context(bind.get("ctx", mx.context.current_context()))
    return framework_of(graph, lambda: binding, ctx)


def _default_grad_req(symbol: Symbol, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Returns the gradient requests of MXNet's Module: all arguments but labels and inputs whose shapes the user gave.

    ``SoftmaxOutput`` and its kin make arguments ``NAME_label``, whose shapes are inferred if the user gives none.
    """
    names = symbol.list_arguments()
    return {name: "null" if name in shapes or name.endswith("label") else "write" for name in names}
