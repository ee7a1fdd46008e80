"""Who pays for a failure: what a user gets who is not strict, where something cannot be had."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Callable, TypeVar

from echo.errors import BudgetError, OptionError, PlanError, one_line
from echo.plans.options import Options

logger = logging.getLogger("echo")
WISHES = (BudgetError, OptionError, PlanError)  # errors about what the user asked for
_T = TypeVar("_T")
Attempt = Callable[[Callable[[Options], Any], Callable[[], Any]], Any]


@dataclass(frozen=True)
class Owner:
    """Who wants plans: an executor that plans again later asks here.

    ``attempt(action, stock)`` is ``action(options)``, or what the owner wants where that fails. ``strict`` is as the
    user said, ``warn`` takes what he is told.
    """

    attempt: Attempt
    strict: bool
    warn: Callable[[str], None]


def user_of(options: Options) -> Owner:
    """A user who asked for plans with these options, and gets the closest one, or the stock graph, and a warning."""

    def attempt(action: Callable[[Options], Any], stock: Callable[[], Any]) -> Any:
        def closest() -> Any:
            return or_smallest(action, options, options.strict, logger.warning)

        return or_stock(closest, stock, options.strict, logger.warning)

    return Owner(attempt, options.strict, logger.warning)


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
