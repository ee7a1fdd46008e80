"""Holds every variant of one operator against stock MXNet, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable

import mxnet as mx

from echo.ir.op_spec import RANGE_ATTRIBUTE
from tests.operators.build import build
from tests.operators.case import Case
from tests.operators.graph import Built, Setting
from tests.operators.run import EXECUTOR, Record, Run, differences, is_taken_over
from tests.operators.settings import Trial
from tests.operators.storage import InPlace, in_place_as, planned, unshared, watched
from tests.operators.variants import VARIANTS, Variant, recomputable_outputs

RANGES = (1, 4, 16)  # under which stock MXNet has to agree with itself


@dataclass(frozen=True)
class Difference:
    """Arrays that are not as stock MXNet has them, with the difference as a part of their largest element."""

    case: str
    setting: str
    variant: str
    runner: str
    grad_req: str
    arrays: dict[str, float]


@dataclass
class Audit:
    """The findings of one case. ``undefined``: stock MXNet does not agree with itself."""

    case: Case
    has_gradient: bool = True
    runs: int = 0
    reused: bool = False  # memory of a recomputed input was taken over in between
    undefined: list[Difference] = field(default_factory=list)
    in_place: InPlace = field(default_factory=set)  # in-place computations of the operator and its gradient
    depends: list[Difference] = field(default_factory=list)  # on working in place
    wrong: list[Difference] = field(default_factory=list)
    placed: list[Difference] = field(default_factory=list)  # gone where all works in place that does so in stock MXNet


def has_gradient(case: Case, setting: Setting) -> bool:
    """Whether MXNet can differentiate the operator at all."""
    try:
        Run(build(case, setting), {}, EXECUTOR, "write").steps()
    except mx.MXNetError as error:
        if "non-differentiable" in str(error):
            return False
        raise
    return True


def audit(case: Case, trials: Iterable[Trial], variants: Iterable[Variant] = VARIANTS) -> Audit:
    """Holds these variants in these settings against stock MXNet."""
    trials, variants = list(trials), list(variants)
    found = Audit(case, has_gradient(case, trials[0].setting))
    for setting, runners in trials:
        built = build(case, setting, not found.has_gradient)
        # after layers of oneDNN a mask as bits changes layouts by itself, whoever reads the map
        bits = setting.masked and setting.producer == "light"
        packed = build(case, setting.packed(), not found.has_gradient) if bits else None
        for runner, grad_req in runners:
            _one(found, setting, built, packed, runner, grad_req, variants)
    return found


def _one(found: Audit, setting: Setting, built: Built, packed: Built | None, runner: str, grad_req: str,
         variants: list[Variant]) -> None:  # fmt: skip
    case = found.case
    stock: InPlace = set()
    first = Run(built, {}, runner, grad_req)
    with planned(watched(stock)):
        expected = first.steps()
    again = {}
    for match_range in RANGES if (runner, setting.masked) == (EXECUTOR, "") else RANGES[:1]:
        marks = {"*": {RANGE_ATTRIBUTE: str(match_range)}}
        again.update(differences(Run(built, marks, runner, grad_req).steps(), expected))
    if again:
        found.undefined.append(Difference(str(case), str(setting), "stock", runner, grad_req, again))
        return
    outputs = recomputable_outputs(case, first.graphs[0], runner)
    tried: list[Any] = []
    for variant in variants:
        graph = packed if variant.packed else built
        marks = None if graph is None or not variant.suits(setting, runner) else variant.marks(graph, runner, outputs)
        if graph is None or marks is None or (variant.packed, marks) in tried:
            continue
        tried.append((variant.packed, marks))
        run = Run(graph, marks, runner, grad_req)
        wrong = _tried(run, expected)
        found.runs += 1
        found.reused = found.reused or (variant.name == "input" and _reuses(run, graph))
        if wrong:
            with planned(in_place_as(stock)):
                still = _tried(Run(graph, marks, runner, grad_req), expected)
            difference = Difference(str(case), str(setting), str(variant), runner, grad_req, still or wrong)
            (found.wrong if still else found.placed).append(difference)


def _tried(run: Run, expected: Record) -> dict[str, float]:
    try:
        return differences(run.steps(), expected)
    except mx.MXNetError as error:
        return {f"error: {error}"[-300:]: 1.0}


def _reuses(run: Run, built: Built) -> bool:
    return any(is_taken_over(graph, set(built.roles["input"][-1:])) for graph in run.graphs[:1])


def in_place(case: Case, setting: Setting) -> Audit:
    """The in-place computations of the operator and its gradient in stock MXNet, and whether they make a difference.

    ``undefined`` says how stock MXNet differs where nothing shares memory.
    """
    found = Audit(case, has_gradient(case, setting))
    built = build(case, setting, not found.has_gradient)
    expected = Run(built, {}, EXECUTOR, "write").steps()
    with planned(unshared(found.in_place)):
        again = differences(Run(built, {}, EXECUTOR, "write").steps(), expected)
    if again:
        found.undefined.append(Difference(str(case), str(setting), "unshared", EXECUTOR, "write", again))
    elif found.in_place:
        with planned(unshared(set(), cut=True)):
            wrong = differences(Run(built, {}, EXECUTOR, "write").steps(), expected)
        if wrong:
            found.depends.append(Difference(str(case), str(setting), "not in place", EXECUTOR, "write", wrong))
    return found
