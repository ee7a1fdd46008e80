"""Holds every variant of one operator against stock MXNet, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator

import mxnet as mx

from echo.passes.rewrite import RANGE_ATTRIBUTE
from tests.operators.build import Built, Setting, build, outputs_of
from tests.operators.case import Case
from tests.operators.run import EXECUTOR, Run, differences, is_taken_over
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
    """What was found of one case. ``undefined``: stock MXNet does not agree with itself."""

    case: Case
    has_gradient: bool = True
    runs: int = 0
    reused: bool = False  # memory of a recomputed input was taken over in between
    undefined: list[Difference] = field(default_factory=list)
    wrong: list[Difference] = field(default_factory=list)


def has_gradient(case: Case, setting: Setting) -> bool:
    """Whether MXNet can differentiate the operator at all."""
    try:
        Run(build(case, setting), {}, EXECUTOR, "write").steps()
    except mx.MXNetError as error:
        if "non-differentiable" in str(error):
            return False
        raise
    return True


def audit(
    case: Case, settings: Iterable[Setting], runners: Iterable[tuple[str, str]], variants: Iterable[Variant] = VARIANTS
) -> Audit:
    """Tries all variants in these settings, by these runners with their ``grad_req``."""
    settings, runners, variants = list(settings), list(runners), list(variants)
    found = Audit(case, has_gradient(case, settings[0]))
    for setting in settings:
        built = build(case, setting, not found.has_gradient)
        packed = build(case, setting.packed(), not found.has_gradient) if setting.masked else None
        for runner, grad_req in runners:
            _one(found, setting, built, packed, runner, grad_req, variants)
    return found


def _one(found: Audit, setting: Setting, built: Built, packed: Built | None, runner: str, grad_req: str,
         variants: list[Variant]) -> None:  # fmt: skip
    case = found.case
    expected = Run(built, {}, runner, grad_req).steps()
    again = {}
    for match_range in RANGES:
        marks = {"*": {RANGE_ATTRIBUTE: str(match_range)}}
        again.update(differences(Run(built, marks, runner, grad_req).steps(), expected))
    if again:
        found.undefined.append(Difference(str(case), str(setting), "stock", runner, grad_req, again))
        return
    outputs = recomputable_outputs(case.op, dict(case.attrs), len(outputs_of(case, setting)))
    for variant in variants:
        graph = packed if variant.packed else built
        marks = None if graph is None else variant.marks(graph, runner, outputs)
        if graph is None or marks is None:
            continue
        run = Run(graph, marks, runner, grad_req)
        wrong = differences(run.steps(), expected)
        found.runs += 1
        found.reused = found.reused or (variant.name == "input" and _reuses(run, graph))
        if wrong:
            found.wrong.append(Difference(str(case), str(setting), str(variant), runner, grad_req, wrong))


def _reuses(run: Run, built: Built) -> bool:
    return bool(run.graphs and run.graphs[0]) and is_taken_over(run.graphs[0], set(built.roles["input"][-1:]))
