"""Plans of small graphs under several options, held against a committed text: no change moves a plan unseen.

Nothing is measured, so that the costs are the roofline's on every machine. Where a plan is meant to change, run pytest
with ``--update-golden`` and read the difference.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, Callable, Iterator, Mapping

import mxnet as mx
import pytest

import echo
from tests import fused_models, whole_models
from tests.conftest import ALL_CASES, any_case

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "no bound": {"max_overhead": None},
    "fuse=False": {"fuse": False},
    "budget 0.7": {"memory_budget": 0.7},
    "exact=False": {"exact": False, "max_overhead": None},
    "echo": {"policy": "echo", "max_overhead": None},
}
WHOLE = ("lstm", "gru", "lstm, two layers, both ways", "lstm, dot attention", "transformer")


def line_of(plan: echo.Plan) -> str:
    """What was planned, in words, and digests of the choices and of what applies them."""
    fused = ", ".join(f"{count} {name}" for name, count in sorted(Counter(name for name, _ in plan.fused).items()))
    marks = hashlib.sha256(repr(sorted(map(repr, plan.marks))).encode()).hexdigest()[:12]
    return " | ".join(
        (
            f"{plan.before.planned} -> {plan.after.planned} bytes",
            f"{len(plan.recomputed)} maps again in {plan.recomputed_nodes} nodes, {plan.overhead:.4f}",
            f"{plan.applied}, range {plan.match_range}, marks {marks}",
            f"fused: {fused or 'nothing'}",
            plan.reason or ("" if plan.exact else "not exact"),
        )
    ).rstrip(" |")


def lines_of(name: str, symbol: mx.sym.Symbol, shapes: Mapping[str, tuple[int, ...]], **bind: Any) -> list[str]:
    """One line for each of `OPTIONS`; of a missed budget, the message."""
    lines = [name]
    for title, options in OPTIONS.items():
        try:
            text = line_of(echo.plan(symbol, **{**bind, **options}, **shapes))
        except echo.BudgetError as error:
            text = str(error).partition(". Held")[0]  # behind it are names, which depend on other tests
        lines.append(f"  {title}: {text}")
    return lines


def small_models() -> Iterator[list[str]]:
    """The lines of each graph."""
    examples = {**fused_models.EXAMPLES, **{f"whole: {name}": whole_models.MODELS[name] for name in WHOLE}}
    for name, build in examples.items():
        example = build()
        names = example.symbol.list_arguments()
        grad_req = {each: "null" if each in example.integers else "write" for each in names}
        yield lines_of(name, example.symbol, example.shapes, exact=example.exact, grad_req=grad_req)
    for name in ALL_CASES:
        case = any_case(name)
        arguments = case.symbol.list_arguments()
        shapes = dict(zip(arguments, case.binding.arg_shapes))
        grad_req = dict(zip(arguments, case.binding.grad_req))
        yield lines_of(f"case: {name}", case.symbol, shapes, grad_req=grad_req)


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_planning")
def test_the_plans_of_small_graphs_are_those_that_were_read(golden: Callable[[str, str], None]) -> None:
    golden("plans.txt", "\n".join(line for lines in small_models() for line in lines))
