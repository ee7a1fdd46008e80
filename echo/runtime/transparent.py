"""Transparent mode: every training symbol that is bound gets a plan, with no change to the program.

``Symbol.simple_bind`` and ``Symbol.bind`` are wrapped; Module, BucketingModule, FeedForward and all else in MXNet's
Python bind through them. The CachedOps of hybridized Gluon blocks are replaced (`echo.runtime.cached_op`). An error
inside echo costs one warning, never the training run.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from dataclasses import replace
from types import TracebackType
from typing import Any, Callable, TypeVar

import mxnet as mx
from mxnet.symbol import Symbol

from echo.errors import BudgetError, EchoError, OptionError
from echo.frontend.session import check_version
from echo.options import Options
from echo.runtime import bind
from echo.runtime.cached_op import plan_everywhere
from echo.runtime.symbol import OptimizedSymbol

logger = logging.getLogger("echo")
_REPORT = "please report it with the traceback, which ECHO_STRICT=1 shows"
_T = TypeVar("_T")
_lock = threading.RLock()
_originals: dict[str, Callable[..., Any]] = {}


class Enabled:
    """What `enable` returns: a context manager that puts the state before back."""

    def __init__(self, before: Options | None) -> None:
        self._before = before

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        disable()
        if self._before is not None:
            enable(self._before)


_options: Options | None = None


def enable(options: Options) -> Enabled:
    """Wraps MXNet's binds. Doing it again changes the options.

    Raises:
        UnsupportedError: a version of MXNet other than 1.9.1.
    """
    global _options
    check_version()
    with _lock:
        before, _options = _options, options
        plan_everywhere(lambda action, stock: _attempt(action, options, stock))
        if not _originals:
            for name, describe in (("simple_bind", bind.simple_bind), ("bind", bind.bind)):
                _originals[name] = getattr(Symbol, name)
                setattr(Symbol, name, _wrapped(_originals[name], describe))
    return Enabled(before)


def disable() -> None:
    """Puts MXNet's own binds back, unless somebody wrapped them since: then echo only stops planning."""
    global _options
    with _lock:
        _options = None
        plan_everywhere(None)
        ours = all(getattr(getattr(Symbol, name), "_is_echo", False) for name in _originals)
        if ours:
            for name, original in _originals.items():
                setattr(Symbol, name, original)
            _originals.clear()


def _wrapped(original: Callable[..., Any], describe: Callable[..., bind.Bind]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(symbol: Symbol, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        options = _options
        if options is None or bind.are_own() or isinstance(symbol, OptimizedSymbol):
            return original(symbol, *args, **kwargs)
        return _planned(functools.partial(original, symbol, *args, **kwargs),
                        functools.partial(describe, symbol, original, *args, **kwargs), options)  # fmt: skip

    wrapper._is_echo = True  # type: ignore[attr-defined]
    return wrapper


def _planned(
    stock: Callable[[], mx.executor.Executor], describe: Callable[[], bind.Bind], options: Options
) -> mx.executor.Executor:
    return _attempt(lambda given: bind.with_plan(describe(), given), options, stock)


def _attempt(action: Callable[[Options], _T], options: Options, stock: Callable[[], _T]) -> _T:
    """The action, with what the user gets where it fails."""
    try:
        try:
            return action(options)
        except BudgetError as error:
            if options.strict:
                raise
            logger.warning("echo: %s. The smallest plan is used.", error)
            return action(replace(options, memory_budget=None, max_overhead=None))
    except Exception as error:
        if options.strict and isinstance(error, EchoError):
            raise
        result = stock()  # where the call itself is wrong, MXNet says so here
        logger.warning("echo: %s: %s; bound without a plan, %s", type(error).__name__, error, _REPORT)
        return result


def enable_from_environment() -> None:
    """What ``ECHO=1`` does once mxnet is imported. Never raises."""
    level = os.environ.get("ECHO_LOG", "")
    if level:
        logging.basicConfig()
        logger.setLevel(level.upper() if level.upper() in logging._nameToLevel else logging.INFO)
    try:
        enable(Options.from_environment(os.environ))
    except (OptionError, EchoError) as error:
        print(f"echo: not active: {error}", file=sys.stderr)
