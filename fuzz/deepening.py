"""Compute-heavy operators that run twice, in programs so small that echo by its rules leaves them alone.

A program whose ``how`` has "deep" is planned without the rule on the seconds of a step; where that is "free", a copy
need not save memory in proportion to its time either. Scripts of found faults call `start`.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from typing import Any, Callable, Iterator, Mapping
from unittest import mock

from echo.ir.ops import spec
from echo.passes import select, variant
from echo.passes.rules import RULES
from echo.plans.decisions import outputs_of, splits_of
from echo.plans.plan import Plan, Summary
from echo.runtime.bind_plan import PLANNER
from fuzz import setting

DEEP = ("priced", "free", "free")  # how it is planned


def copies(plan: Plan) -> int:
    """How often compute-heavy operators of a plan run once more."""
    heavy = [mark for mark in plan.marks if outputs_of(mark) and spec(mark.op).cost.heavy]
    return sum(max(1, len(splits_of(mark))) for mark in heavy)


class _Counting(Summary):
    """Also remembers the most such runs of a plan that was bound."""

    most = 0

    def add(self, plan: Plan) -> None:
        super().add(plan)
        self.most = max(self.most, copies(plan))


def most_copies() -> int:
    """The most such runs of one plan that was bound since this was last asked."""
    before, PLANNER.summary = PLANNER.summary, _Counting()
    return before.most if isinstance(before, _Counting) else 0


@contextlib.contextmanager
def deepening(how: Mapping[str, Any]) -> Iterator[None]:
    """While this is open, plans are made as ``how`` says."""
    if how.get("deep") not in DEEP:
        yield
        return
    rules = replace(RULES, step=0.0, heavy=0.0 if how["deep"] == "free" else RULES.heavy)
    PLANNER.forget()  # what it remembers does not know of rules
    with mock.patch.object(select, "RULES", rules), mock.patch.object(variant, "RULES", rules):
        yield
    PLANNER.forget()


def deepened(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The check of a program, in its own way of planning."""

    @functools.wraps(check)
    def checked(program: Any) -> Any:
        with deepening(program.how):
            return check(program)

    return checked


def start(how: Mapping[str, Any]) -> None:
    """Has this process plan as the fuzzer did; the hook, which poison needs, is installed from then on."""
    setting.prepare()
    deepening(how).__enter__()
