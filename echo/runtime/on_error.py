"""What a user gets who is not strict, where something cannot be had: the closest to it, and a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, TypeVar

from echo.errors import BudgetError, OptionError, PlanError, one_line
from echo.plans.options import Options

REPORT = "If that looks like a fault of echo, please report it with the traceback, which ECHO_STRICT=1 shows"
WISHES = (BudgetError, OptionError, PlanError)  # errors about what the user asked for
_T = TypeVar("_T")


def or_smallest(
    action: Callable[[Options], _T], options: Options, strict: bool, warn: Callable[[str], None]
) -> _T:
    """The action; where the user is not ``strict``, with the smallest plan there is where the budget is out of reach,
    and with a new plan where those that he gave were made for something else."""
    try:
        return action(options)
    except PlanError as error:
        if strict:
            raise
        warn(f"echo: {error}. A new plan is made.")
        return or_smallest(action, replace(options, plan=()), strict, warn)
    except BudgetError as error:
        if strict:
            raise
        warn(f"echo: {error}. The smallest plan is used.")
        reachable, bound = error.reachable, options.overhead_bound
    try:
        return action(replace(options, memory_budget=reachable))
    except BudgetError:  # aiming at another budget, the search came out somewhere else
        return action(replace(options, memory_budget=None, max_overhead=bound))


def or_stock(
    action: Callable[[], _T], stock: Callable[[], _T], strict: bool, warn: Callable[[str], None]
) -> _T:
    """The action; where it fails, and the user is not ``strict``, what he would have without echo.

    Raises:
        BudgetError, OptionError, PlanError: a wish of the user's cannot be met.
    """
    try:
        return action()
    except WISHES:
        raise
    except Exception as error:
        if strict:
            raise
        result = stock()  # where the call itself is wrong, MXNet says so here
        warn(f"echo: bound without a plan (strict=True raises): {one_line(error)}")
        return result
