"""Transparent mode: every training symbol that is bound gets a plan, with no change to the program.

``Symbol.simple_bind`` and ``Symbol.bind`` are wrapped; Module, BucketingModule, FeedForward and all else in MXNet's
Python bind through them. The CachedOps of hybridized Gluon blocks are replaced (`echo.runtime.cached_op`). An error
inside echo costs one warning, never the training run.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from types import TracebackType
from typing import Any, Callable

import mxnet as mx
from mxnet.symbol import Symbol

from echo.frontend.install import check_version
from echo.frontend.mxnet_settings import share_one_slot
from echo.frontend.symbols import graph_of
from echo.plans.options import Options
from echo.plans.variables import options_from, warn_of_misspelt
from echo.runtime import bind, bind_request
from echo.runtime.bind import OptimizedSymbol
from echo.runtime.error_policy import ErrorPolicy, NeverStopTraining
from echo.runtime.gluon import cached_op, watched_hybridize, watched_step
from echo.runtime.patches import PATCHES
from echo.system.threads import Once, are_own

logger = logging.getLogger("echo")
_BINDS: dict[str, Callable[..., bind_request.BindRequest]] = {
    "simple_bind": bind_request.simple_bind,
    "bind": bind_request.bind,
}


class Enabled:
    """The context manager that `enable` returns: at its end it restores the state from before."""

    def __init__(self, before: ErrorPolicy | None) -> None:
        self._before = before

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _switch(self._before)


def enable(options: Options) -> Enabled:
    """Wraps MXNet's binds. Doing it again changes the options.

    Raises:
        UnsupportedError: a version of MXNet other than 1.9.1, or a second copy of echo.
    """
    check_version()
    return Enabled(_switch(NeverStopTraining(options, _warning_once())))


def disable() -> None:
    """Puts the binds from before back, unless another library wrapped them since: then echo only stops planning."""
    _switch(None)


def _switch(on_error: ErrorPolicy | None) -> ErrorPolicy | None:
    """Switches transparent mode on with this policy, or off with None; the policy from before."""
    with PATCHES.lock.held():
        before = PATCHES.switch(on_error)
        for name, describe in _BINDS.items():
            _put_or_take_out(Symbol, name, functools.partial(_wrapped, describe))
        _put_or_take_out(mx.nd, "CachedOp", lambda _: cached_op)
        _put_or_take_out(mx.gluon.Trainer, "step", watched_step)
        _put_or_take_out(mx.gluon.Block, "hybridize", watched_hybridize)
    return before


def _put_or_take_out(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    if PATCHES.policy is None:
        PATCHES.take_out(owner, name)
    else:
        PATCHES.put(owner, name, make)


def _wrapped(describe: Callable[..., bind_request.BindRequest], original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the place of an MXNet bind. Inside of another wrapper of echo's it passes binds through."""

    @functools.wraps(original)
    def wrapper(symbol: Symbol, /, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        on_error = PATCHES.policy
        if on_error is None or are_own() or isinstance(symbol, OptimizedSymbol):
            return original(symbol, *args, **kwargs)
        return _planned(functools.partial(original, symbol, *args, **kwargs),
                        functools.partial(describe, symbol, original, *args, **kwargs), on_error)  # fmt: skip

    return wrapper


def _planned(
    original: Callable[[], mx.executor.Executor],
    describe: Callable[[], bind_request.BindRequest],
    on_error: ErrorPolicy,
) -> mx.executor.Executor:
    def planned(options: Options) -> mx.executor.Executor:
        request = describe()
        return bind.with_plan(request, options, on_error, lambda: graph_of(request.symbol))

    return on_error(planned, original)


def _warning_once() -> Callable[[str], None]:
    """A function that warns of the same thing once; twenty buckets that fail alike are one line."""
    once = Once()

    def warn(text: str) -> None:
        logger.log(logging.WARNING if once.first(text) else logging.DEBUG, text)

    return warn


class _UnlessConfigured(logging.Handler):
    """Writes to standard error if the program has not set up logging; if it has, its own handlers write.

    Programs exchange ``sys.stderr``, as pytest does while it imports: a line goes to the one that is there when it is
    logged. One that is closed gets none.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or sys.stderr is None:
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


def _log(level: str) -> None:
    if not level:
        return
    is_level = isinstance(logging.getLevelName(level.upper()), int)
    logger.setLevel(level.upper() if is_level else logging.INFO)
    if not any(isinstance(handler, _UnlessConfigured) for handler in logger.handlers):
        logger.addHandler(_UnlessConfigured())
    if not is_level:
        logger.warning("echo: ECHO_LOG: expected a level such as INFO, which it is now, got %r", level)


def enable_from_environment(before_all: bool = False) -> None:
    """Switches transparent mode on, as ``ECHO=1`` asks, once mxnet is imported.

    If that is ``before_all`` operators of the program, these draw from one slot (`share_one_slot`).

    Raises:
        OptionError: a variable has a value that echo does not know.
        UnsupportedError: as `enable`.
    """
    _log(os.environ.get("ECHO_LOG", ""))
    warn_of_misspelt(lambda line: logger.warning("echo: %s", line))
    enable(options_from(os.environ))
    if before_all and not share_one_slot():
        logger.debug("echo: MXNet's operators draw from several workspace slots")
