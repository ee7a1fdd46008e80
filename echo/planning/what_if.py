"""The exact cost, in bytes and seconds, of a plan with one of its decisions reversed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable

import numpy as np

from echo.estimators.cost_model import CostModel
from echo.estimators.layouts import with_layout_copies
from echo.estimators.storage_planner import Evaluation, Evaluator, RecomputeMask
from echo.ir.graph import Entry
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, GradientRule
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import Candidates, EstimateCost, FindCandidates
from echo.passes.request import Request
from echo.plans.decisions import RECOMPUTE, Decision, recomputed_in
from echo.plans.plan import Plan
from echo.plans.text import Alternative, Cost
from echo.policies.equivalence_classes import classes

_ROUNDS = 1  # of the classes: one ring tells roles apart, and not yet the first time step from the second


@dataclass(frozen=True)
class WhatIf:
    """Answers for the plan of a request; the first answer computes the training graph, which is kept."""

    request: Request
    plan: Plan

    def __call__(self, decision: Decision) -> Alternative:
        """The costs of the plan with this decision reversed (`echo.plans.text.Alternative`)."""
        number = self._training.number_of.get(decision.node)
        if number is None:
            return Alternative(note="not a node of the symbol: it is never recomputed")
        entries = self._entries(number, decision.output)
        if not entries:
            return Alternative(note=f"it cannot be recomputed: {self._candidates.refused.get(number, decision.reason)}")
        alike = self._alike(number, decision)
        alike_entries = [entry for alike_node in alike for entry in self._entries(alike_node, decision.output)]
        return Alternative(
            alone=self._cost(entries, decision),
            together=self._cost([*entries, *alike_entries], decision) if alike_entries else None,
            alike=len(alike),
        )

    def _cost(self, entries: Iterable[Entry], decision: Decision) -> Cost:
        choice = self._choice.copy()
        choice[[self._training.entry_id(entry) for entry in entries]] = 0 if decision.action == RECOMPUTE else 1
        evaluation = self._evaluate(choice)
        # operators may have been measured since the plan was made: only the difference counts
        return Cost(evaluation.bytes, self.plan.overhead_seconds + evaluation.seconds - self._unchanged.seconds)

    def _entries(self, number: int, output: int) -> list[Entry]:
        """Returns the candidate entries of one decision: this output, or without the hook all of the node's."""
        offered = [*self._candidates.light.get(number, ()), *self._candidates.heavy.get(number, ())]
        offered += [entry for entry in self._candidates.must_recompute if entry.node == number]
        if Entry(number, output) not in offered:
            return []
        return [Entry(number, output)] if self.request.framework.hook else offered

    def _alike(self, number: int, decision: Decision) -> list[int]:
        """Returns the other nodes of the same equivalence class for which the plan has the same decision."""
        number_of = self._training.number_of
        same_action = {
            number_of[item.node]
            for item in self.plan.decisions
            if item.action == decision.action and item.output == decision.output and item.node in number_of
        }
        (groups,) = classes(self._training, sorted(same_action), (_ROUNDS,))
        group = next(group for group in groups if number in group)
        return [member for member in group if member != number]

    @cached_property
    def _training(self) -> TrainingGraph:
        training = self.request.framework.differentiate()
        present = {node.original for _, node in training.operators()}  # without nodes that MXNet merged into equal ones
        marks = [mark for mark in self.plan.marks if GRADIENT_ATTRIBUTE in mark.attrs and mark.node in present]
        rules = {mark.node: GradientRule.parse(mark.attrs[GRADIENT_ATTRIBUTE]) for mark in marks}
        if rules:
            training = self.request.framework.apply_gradient_rules(training, rules)
        return with_layout_copies(training, self.request.framework.device)

    @cached_property
    def _candidates(self) -> Candidates:
        return FindCandidates().run(self.request, self._training)

    @cached_property
    def _evaluator(self) -> Evaluator:
        costs: CostModel = EstimateCost().run(self.request, self._training)
        return self.request.framework.evaluator(self._training, costs.seconds)[0]

    @cached_property
    def _choice(self) -> RecomputeMask:
        """The choice of the plan, as the evaluator takes it."""
        choice = np.zeros(self._evaluator.entries, np.uint8)
        entries, _ = recomputed_in(self._training, self.plan.marks)
        choice[[self._training.entry_id(entry) for entry in entries]] = 1
        return choice

    @cached_property
    def _unchanged(self) -> Evaluation:
        return self._evaluate(self._choice)

    def _evaluate(self, choice: RecomputeMask) -> Evaluation:
        match_range = self.request.framework.match_range if self.plan.match_range is None else self.plan.match_range
        return self._evaluator.evaluate(choice, (match_range,), None, recomputed_in(self._training, self.plan.marks)[1])
