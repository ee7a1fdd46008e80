"""The frontier of a model: how much memory each second of recomputation is worth."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, TypeVar

from echo.errors import BudgetError, OptionError
from echo.plans.options import budget_bytes, plain
from echo.plans.plan import Plan
from echo.plans.text import titled_table
from echo.system.terminal import megabytes, preformatted, preserve_python_rng, size_text, text_of

_MOST_BUDGETS = 100
_MOST_TRIES = 20
UNKNOWN = "The time of a step without echo is not known, so times are those of the fastest plan."
LEFT_OUT = "Other budgets led to one of these plans, or to one that needs more memory and more time."
P = TypeVar("P")  # a plan


@dataclass(frozen=True)
class Frontier:
    """Plans from the smallest to the fastest; each takes less time than all that need less memory.

    ``budgets`` are the bytes that each of them was asked to keep. It prints as a table, with the original graph. A plan
    of it is applied with ``echo.optimize(symbol, plan=frontier.within(budget))``.
    """

    plans: tuple[Plan, ...]
    budgets: tuple[int, ...]

    def within(self, budget: int | float | str) -> Plan:
        """The fastest plan whose executor holds at most ``budget``, given as the option ``memory_budget``.

        Raises:
            BudgetError: there is none.
            OptionError: the budget is neither bytes, a size nor a fraction.
        """
        limit = budget_bytes(plain(budget), self.plans[0].before.total)
        for plan in reversed(self.plans):
            if plan.after.total <= limit:
                return plan
        least = self.plans[0].after
        held = ", ".join(f"{kind} {size_text(size)}" for kind, size in least.static.items() if size)
        raise BudgetError(limit, least.total, held).repeating(budget)

    def to_json(self) -> list[dict[str, Any]]:
        """One object a plan.

        It has bytes (``total`` is all that the executor holds, ``budget`` what it was asked to keep), the ``seconds``
        of a step, ``time`` as a multiple of the stock step's, or of the fastest plan's where that is not known, and
        ``overhead``, the part of a step that recomputation adds; all three are predicted.
        """
        unit = self._stock_seconds or min(map(_seconds, self.plans), default=1.0) or 1.0
        return [
            {"budget": budget, "total": plan.after.total, "planned": plan.after.planned,
             "seconds": _seconds(plan), "time": _seconds(plan) / unit,
             "overhead": plan.overhead, "recomputed_nodes": plan.recomputed_nodes}
            for plan, budget in zip(self.plans, self.budgets)
        ]  # fmt: skip

    @property
    def _stock_seconds(self) -> float | None:
        """The seconds of a step without echo, which at least one plan knows, unless too little could be measured."""
        return next((plan.stock_seconds for plan in self.plans if plan.stock_seconds), None) or next(
            (plan.step_seconds for plan in self.plans if not plan.fused), None
        )

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def __str__(self) -> str:
        headings = (
            "budget, MB",
            "held by the executor, MB",
            "planned, MB",
            "time of a step, predicted",
            "of it recomputation",
            "recomputed operators",
        )
        with preserve_python_rng():
            table = titled_table("frontier", *headings)
            for row in self.to_json():
                sizes = (megabytes(row[name]) for name in ("budget", "total", "planned"))
                times = f"{100 * (row['time'] - 1):+.1f} %", f"+{100 * row['overhead']:.1f} %"
                table.add_row(*sizes, *times, str(row["recomputed_nodes"]))
            for plan in self.plans[:1]:  # each has the bytes of the original graph
                sizes = (megabytes(size) for size in (plan.before.total, plan.before.planned))
                table.add_row("without echo", *sizes, "+0.0 %" if self._stock_seconds else "unknown", "+0.0 %", "0")
            return text_of([table, LEFT_OUT, *([] if self._stock_seconds else [UNKNOWN])], 100)


def _smallest(plan: Callable[[int], P]) -> tuple[int, P]:
    """A budget and its plan: the least that can be reached, or a little more where a search that was cut off named it.

    Raises:
        BudgetError: not even the original graph's own bytes can be met.
    """
    budget = 2  # 1 would be all of the original graph's
    for _ in range(_MOST_TRIES):
        try:
            return budget, plan(budget)
        except BudgetError as error:
            budget = error.reachable if budget < error.reachable else int(1.1 * budget)
    return budget, plan(budget)


def frontier(plan: Callable[[int], Plan], budgets: int) -> Frontier:
    """Plans with ``budgets`` budgets in equal ratios, from the least that can be reached to the original graph's bytes.

    ``plan`` makes the plan for a budget. Points that need more memory and more time than another are left out.
    """
    kept = points(plan, budgets, lambda one: Point(one.before.total, one.after.total, _seconds(one)))
    return Frontier(tuple(plan for _, plan in kept), tuple(budget for budget, _ in kept))


def _seconds(plan: Plan) -> float:
    """The predicted seconds of a step."""
    return plan.step_seconds + plan.overhead_seconds


class Point(NamedTuple):
    """Bytes of a graph without a plan and with it, and the time of a step, in a unit that all points share."""

    stock: int
    bytes: int
    time: float


def points(plan: Callable[[int], P], budgets: int, point: Callable[[P], Point]) -> list[tuple[int, P]]:
    """The budgets and plans of `frontier`, for plans of any kind; ``point`` is where one lies.

    Raises:
        OptionError: the number of budgets makes no sense.
    """
    budgets = plain(budgets)
    if isinstance(budgets, bool) or not isinstance(budgets, int) or not 2 <= budgets <= _MOST_BUDGETS:
        raise OptionError(f"budgets: expected a number from 2 to {_MOST_BUDGETS}, got {budgets!r}")
    budget, smallest = _smallest(plan)
    most, least, _ = point(smallest)
    ratio = (most / least) ** (1 / (budgets - 1)) if least else 1.0
    found = [(budget, smallest)]
    for step in range(1, budgets):
        budget = most if step == budgets - 1 else int(least * ratio**step)
        with contextlib.suppress(BudgetError):  # where a search was cut off, another budget may be met
            found.append((budget, plan(budget)))
    kept: list[tuple[int, P]] = []
    for budget, candidate in sorted(found, key=lambda pair: (*point(pair[1])[1:], pair[0])):
        if not kept or point(candidate).time < point(kept[-1][1]).time:
            kept.append((budget, candidate))
    return kept
