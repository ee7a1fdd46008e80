"""What a user gets who is not strict, where a wish of his cannot be met: the closest to it, and a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, TypeVar

from echo.errors import BudgetError, PlanError
from echo.options import Options

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
