"""Plans of small graphs under several options, held against a committed text: no change moves a plan unseen.

Nothing is measured, so that the costs are the roofline's on every machine. Where a plan is meant to change, write all
of them again, and read the difference:

    .venv/bin/python -m pytest tests/test_golden_plans.py --update-golden

on a machine with AVX-512, then with ECHO_DEBUG=level=avx2 and with ECHO_DEBUG=level=portable.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Callable, Mapping

import mxnet as mx
import pytest

import echo
from echo.kernels.library import level
from tests.support import fused_models, whole_models
from tests.support.cases import ALL_CASES, any_case

GOLDEN = Path(__file__).parent / "golden" / "plans.txt"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "no bound": {"max_overhead": None},
    "fuse=False": {"fuse": False},
    "budget 0.7": {"memory_budget": 0.7},
    "fuse='memory'": {"fuse": "memory", "max_overhead": None},
    "echo": {"policy": "echo", "max_overhead": None},
}
# Workspaces of fused operators hang on the width of vectors, and what fits hangs on them. Lines are those of the
# widest; one that differs elsewhere stands after its graph's, marked with the level, as "default @avx2".
WIDEST, MARK = "avx512", " @"
WHOLE = ("lstm", "gru", "lstm, two layers, both ways", "lstm, dot attention", "transformer")


def line_of(plan: echo.Plan) -> str:
    """The plan in words, and digests of the choices and of the applied graph."""
    fused = ", ".join(f"{count} {name}" for name, count in sorted(Counter(name for name, _ in plan.fused).items()))
    marks = hashlib.sha256(repr(sorted(map(repr, plan.marks))).encode()).hexdigest()[:12]
    return " | ".join(
        (
            f"{plan.before.planned} -> {plan.after.planned} bytes",
            f"{len(plan.recomputed)} maps again in {plan.recomputed_nodes} nodes, {plan.overhead:.4f}",
            f"{plan.applied}, range {plan.match_range}, marks {marks}",
            f"fused: {fused or 'nothing'}",
            plan.reason,
        )
    ).rstrip(" |")


def lines_of(name: str, symbol: mx.sym.Symbol, shapes: Mapping[str, tuple[int, ...]], **bind: Any) -> list[str]:
    """One line for each of `OPTIONS`; of a missed budget, the message."""
    lines = [name]
    for title, options in OPTIONS.items():
        try:
            text = line_of(echo.plan(symbol, **{**bind, **options}, **shapes))
        except echo.BudgetError as error:
            text = str(error).partition(". Held")[0]  # after it are names, which depend on other tests
        lines.append(f"  {title}: {text}")
    return lines


def graphs() -> dict[str, Callable[[], list[str]]]:
    """The lines of each graph, by its name."""

    def of_example(name: str, build: Callable[[], Any]) -> list[str]:
        example = build()
        names = example.symbol.list_arguments()
        grad_req = {each: "null" if each in example.integers else "write" for each in names}
        return lines_of(name, example.symbol, example.shapes, fuse=example.fuse, grad_req=grad_req)

    def of_case(name: str, title: str) -> list[str]:
        case = any_case(name)
        arguments = case.symbol.list_arguments()
        shapes = dict(zip(arguments, case.binding.arg_shapes))
        return lines_of(title, case.symbol, shapes, grad_req=dict(zip(arguments, case.binding.grad_req)))

    examples = {**fused_models.EXAMPLES, **{f"whole: {name}": whole_models.MODELS[name] for name in WHOLE}}
    made = {name: partial(of_example, name, build) for name, build in examples.items()}
    made.update({f"case: {name}": partial(of_case, name, f"case: {name}") for name in ALL_CASES})

    def after(first: str, name: str, title: str) -> list[str]:
        made[first]()
        return of_case(name, title)

    title = "case: nmt_large, its search started from the plans of nmt"
    return {**made, title: partial(after, "case: nmt", "nmt_large", title)}


def sections() -> dict[str, list[str]]:
    """The committed lines of each graph, of which the first is its name."""
    found: dict[str, list[str]] = {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            name = line
        found.setdefault(name, []).append(line)
    return found


GRAPHS = graphs()


def test_each_graph_is_there_once(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):  # the tests below write the others
        kept = sections() if GOLDEN.is_file() else {}
        write({name: kept.get(name, [name]) for name in GRAPHS})
    assert list(sections()) == list(GRAPHS)
    assert len(GRAPHS) > 40


@pytest.mark.every(9)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.usefixtures("cheap_planning")
def test_the_plans_are_those_that_were_read(name: str, request: pytest.FixtureRequest) -> None:
    lines = GRAPHS[name]()
    if request.config.getoption("--update-golden"):
        read = sections()
        write({**read, name: merged(read[name], lines, level())})
    assert lines == expected(sections()[name], level())


def test_lines_of_each_level() -> None:
    read = merged(["graph: one"], ["graph: one", "  default: 1", "  no bound: 2"], WIDEST)
    read = merged(read, ["graph: one", "  default: 1", "  no bound: 3"], "avx2")
    assert read == ["graph: one", "  default: 1", "  no bound: 2", "  no bound @avx2: 3"]
    assert expected(read, "avx2") == ["graph: one", "  default: 1", "  no bound: 3"]
    assert expected(read, WIDEST) == expected(read, "portable") == read[:3]
    assert merged(read, ["graph: one", "  default: 1", "  no bound: 2"], "avx2") == read[:3]
    assert merged(read, ["graph: one", "  default: 4", "  no bound: 2"], WIDEST) == [read[0], "  default: 4", *read[2:]]


def expected(read: list[str], name: str) -> list[str]:
    """The lines of a graph at a level."""
    own = {_title(line).replace(f"{MARK}{name}", ""): line for line in read if _title(line).endswith(f"{MARK}{name}")}
    lines = [own.get(_title(line), line) for line in read if MARK not in _title(line)]
    return [line.replace(f"{MARK}{name}:", ":", 1) for line in lines]


def merged(read: list[str], lines: list[str], name: str) -> list[str]:
    """The lines of a graph to commit, of which ``lines`` were got at a level, and ``read`` were there before."""
    others = [line for line in read if MARK in _title(line) and not _title(line).endswith(f"{MARK}{name}")]
    if name == WIDEST:
        return [*lines, *others]
    widest = [line for line in read if MARK not in _title(line)]
    own = [line.replace(":", f"{MARK}{name}:", 1) for line in lines if line not in widest]
    return [*widest, *others, *own]


def _title(line: str) -> str:
    return line.partition(":")[0] if line.startswith(" ") else ""


def write(lines: Mapping[str, list[str]]) -> None:
    text = "\n".join(line for section in lines.values() for line in section)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
