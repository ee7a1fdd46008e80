"""Error policies: what a user gets where planning fails, or where MXNet refuses a graph that was planned."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Callable, TypeVar

from echo.errors import (
    REPORT,
    BudgetError,
    EchoError,
    LeftAloneError,
    OptionError,
    PlanError,
    TimeLimitError,
    UnsupportedError,
    one_line,
    reraise_interruption,
)
from echo.plans.options import Options, renamed
from echo.plans.variables import names_of_set
from echo.system.threads import own_binds

logger = logging.getLogger("echo")
UNMET_REQUESTS = (BudgetError, TimeLimitError, OptionError, PlanError)  # errors about what the user asked for
_T = TypeVar("_T")
_C = TypeVar("_C")


@dataclass(frozen=True)
class ErrorPolicy(ABC):
    """An error policy: ``on_error(action, original)`` calls ``action`` with the user's options.

    If that fails, the policy decides: it raises, tries options near to the user's, or calls ``original``, which does
    the same without echo. ``warn`` writes a warning for the user.
    """

    options: Options
    warn: Callable[[str], None] = logger.warning

    @property
    def strict(self) -> bool:
        """The user's option ``strict``."""
        return self.options.strict

    @property
    def later(self) -> ErrorPolicy:
        """The policy for plans that are made again where shapes change."""
        return self

    @abstractmethod
    def __call__(self, action: Callable[[Options], _T], original: Callable[[], _T]) -> _T: ...


@dataclass(frozen=True)
class RaiseUnmetRequests(ErrorPolicy):
    """`echo.optimize`: a budget, plan or option that cannot be had raises; other errors cost a warning and the plan.

    With ``nearest``, as where shapes change in the middle of a training, an unmet request costs a warning, too, and the
    user gets the nearest plan. Under ``strict`` everything raises.
    """

    nearest: bool = False

    @property
    def later(self) -> ErrorPolicy:
        return replace(self, nearest=True)

    def __call__(self, action: Callable[[Options], _T], original: Callable[[], _T]) -> _T:
        try:
            return nearest(action, self.options, self.warn) if self.nearest else action(self.options)
        except UNMET_REQUESTS:
            raise
        except Exception as error:
            reraise_interruption(error)
            if self.strict:
                raise
            result = original()  # where the call itself is wrong, MXNet says so here
            if not left_alone(error):
                self.warn(f"echo: bound without a plan (strict=True raises): {one_line(error)}")
            return result


@dataclass(frozen=True)
class NeverStopTraining(ErrorPolicy):
    """``ECHO=1``: an unmet request gets the nearest plan, any other error one warning and the original graph.

    An error is warned of once for each text. Under ``strict`` echo's own errors raise at once, others once the
    original graph ran; where that fails too, its error raises.
    """

    def __call__(self, action: Callable[[Options], _T], original: Callable[[], _T]) -> _T:
        try:
            return nearest(action, self.options, self.warn)
        except Exception as error:
            reraise_interruption(error)
            if isinstance(error, OptionError):  # it names the option, and the user knows the variable
                error = OptionError(renamed(str(error), names_of_set(os.environ)))
            if self.strict and isinstance(error, EchoError):
                raise error from error.__cause__
            with own_binds():
                result = original()  # where the call itself is wrong, MXNet says so here
            if self.strict:
                raise
            if left_alone(error):
                return result
            advice = "" if isinstance(error, (*UNMET_REQUESTS, UnsupportedError)) else f" {REPORT}."
            self.warn(f"echo: bound without a plan: {one_line(error)}.{advice}")
            return result


def left_alone(error: Exception) -> bool:
    """Whether echo leaves the original graph as it is on purpose, which it then says in the log."""
    if not isinstance(error, LeftAloneError):
        return False
    logger.info(f"echo: bound as it is: {error}")
    return True


def nearest(action: Callable[[Options], _T], options: Options, warn: Callable[[str], None]) -> _T:
    """Runs the action with the options; where it fails and they are not ``strict``, with the nearest that can be had.

    Those are the smallest plan where the budget is out of reach, the fastest one where the bound on a step's time is,
    and a new plan where the given plans were made for another graph.
    """
    try:
        return action(options)
    except PlanError as error:
        if options.strict:
            raise
        warn(f"echo: {error}. A new plan is made.")
        return nearest(action, replace(options, plan=()), warn)
    except TimeLimitError as error:
        if options.strict:
            raise
        return _fastest(action, options, error, warn)
    except BudgetError as error:
        if options.strict:
            raise
        warn(f"echo: {error}. The smallest plan is used.")
        reachable, bound = error.reachable, options.overhead_bound
    smallest = replace(options, memory_budget=reachable)
    try:
        return action(smallest)
    except TimeLimitError as error:
        return _fastest(action, smallest, error, warn)
    except BudgetError:  # aiming at another budget, the search came out somewhere else
        return nearest(action, replace(options, memory_budget=None, max_overhead=bound), warn)


def _fastest(
    action: Callable[[Options], _T], options: Options, error: TimeLimitError, warn: Callable[[str], None]
) -> _T:
    warn(f"echo: {error}. The fastest plan is used.")
    within = replace(options, max_time=error.reachable)
    try:
        return action(within)
    except BudgetError:
        return nearest(action, within, warn)
    except TimeLimitError:  # times that were measured meanwhile are a little longer
        return nearest(action, replace(options, max_time=None, max_overhead=0.0), warn)


def first_bindable(
    choice: _C, run: Callable[[_C], _T], unfused: Callable[[], _C], original: _C, on_error: ErrorPolicy, done: str
) -> tuple[_T, _C]:
    """Tries three choices with ``run``, in this order, and returns the first result, with the choice that gave it.

    They are the given one; the one without fused operators, which ``unfused`` returns (``original`` if there is none);
    and ``original``, the original graph. A warning says what was ``done`` with which of them ("bound", "runs"), and why
    the given one was not: that error alone is told.

    Raises:
        MXNetError: the original graph cannot run like this either; or, under ``strict``, the given choice cannot.
    """
    if choice is original:
        return run(original), original
    try:
        return run(choice), choice
    except Exception as error:
        reraise_interruption(error)
        if on_error.strict:
            raise
        why = one_line(error)
    try:
        second = unfused()
        if second is not original:
            result = run(second)
            on_error.warn(f"echo: {done} without fused operators: {why}. {REPORT}.")
            return result, second
    except Exception as error:
        reraise_interruption(error)
    result = run(original)  # where the call itself is wrong, MXNet says so here
    on_error.warn(f"echo: {done} without a plan: {why}. {REPORT}.")
    return result, original
