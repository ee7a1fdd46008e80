"""Graphs to choose between: each with the plan that was made for it, or with the budget that it misses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Iterator, NamedTuple, Protocol, Sequence

from echo.errors import BudgetError, GraphError
from echo.ir.graph import Graph
from echo.passes.base import run
from echo.passes.explain import memory
from echo.passes.patterns import MASKS, QUIET
from echo.passes.patterns.apply import SMALL, Fused
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.passes.trace import trace
from echo.passes.workspaces import CountWorkspaces, Workspaces
from echo.plans.decisions import HIDDEN, NOT_FUSED, Memory
from echo.plans.options import budget_bytes
from echo.plans.plan import Plan
from echo.policies.warm_start import WarmStart


class Planned(NamedTuple):
    """The plan, the graph to bind (the user's own where nothing is gained), and a hint for graphs of the same model.

    ``base`` is the user's graph with the plan's fused operators, without its marks.
    """

    plan: Plan
    graph: Graph
    base: Graph
    hint: WarmStart | None


@dataclass(frozen=True)
class Trial:
    """One graph for the user's model, with its plan; exactly one of ``planned`` and ``missed`` is there.

    ``stock`` is the memory of the user's own graph, None where nothing is fused: then the plan has it.
    """

    fused: Fused
    stock: Memory | None
    planned: Planned | None
    missed: BudgetError | None = None

    @property
    def plan(self) -> Plan:
        """The plan.

        Raises:
            BudgetError: there is none.
        """
        if self.planned is None:
            assert self.missed is not None
            raise self.missed
        return self.planned.plan

    @property
    def is_larger(self) -> bool:
        """Whether it needs more than the user's own graph."""
        return self.planned is not None and self.stock is not None and self._total > self.stock.total

    @property
    def _total(self) -> int:
        """All bytes that the plan's graph holds, without workspaces as small as those of MXNet's own operators."""
        after = self.plan.after
        return after.total - min(after.workspaces, RULES.workspace)

    def is_enough(self, request: Request) -> bool:
        """Whether no other graph has to be planned: this one keeps the budget, or needs little enough."""
        if self.planned is None or self.stock is None:
            return False
        after = self.plan.after
        others = after.total - after.workspaces - (1 - RULES.other) * after.chosen
        few = after.chosen <= RULES.enough * self.stock.planned and self._total <= RULES.slack * others
        return request.options.memory_budget is not None or few

    def bytes(self, hidden: int) -> int:
        """The bytes of the graph, comparable with those of others.

        ``hidden`` is the most that operators of any of the graphs hold beyond planned memory.
        """
        return self._total + hidden - self.fused.hidden

    def left(self, fused: Fused, missed: BudgetError | None = None) -> Trial:
        """This trial, where a refinement was not taken; ``missed`` is the error of the refined one, if it had one."""
        least = _least(self.missed, missed) if self.missed else None
        return replace(self, fused=fused, missed=least)

    def result(self, request: Request) -> Planned:
        """The plan as one of the user's graph, with all remarks on it.

        Raises:
            BudgetError: there is none.
        """
        plan = replace(_explained(self.plan, self.fused, self.stock), failed=tuple(request.failed))
        if (tracing := trace()) is not None:
            tracing.note("plan", "\n".join([plan.summary(), *plan.remarks]))
        assert self.planned is not None
        return self.planned._replace(plan=plan)


class Offer(Protocol):
    """The value of a refinement: ``stays`` is the graph as it was, ``fused`` the refined one or None.

    ``stays`` has all near-misses, also those of the refinement.
    """

    @property
    def stays(self) -> Fused: ...
    @property
    def fused(self) -> Fused | None: ...
    def why_not_tried(self, request: Request, without: Plan) -> str:
        """Why the refined graph is not planned, judged by the plan without the refinement; empty where it is."""

    def why_not_taken(self, request: Request, without: Plan, refined: Plan) -> str:
        """Why the refined graph is left, judged by the plans without and with it; empty where it is taken."""

    def declined(self, request: Request, reason: str) -> Fused:
        """The graph as it was, with the reason why it stays."""


class Refinement(Protocol):
    """A pass that offers another graph in the place of the chosen one.

    ``label`` says in messages what it puts in. ``keeps_budgets``: it may keep a budget that no plan keeps without it.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    keeps_budgets: ClassVar[bool]
    needs: ClassVar[tuple[type, ...]]
    gives: ClassVar[type]

    def run(self, request: Request, fused: Fused) -> Offer: ...


def choose(trials: Sequence[Trial]) -> Trial:
    """The first trial within `RULES.slack` of the fewest bytes; the first ones have the most fused operators.

    Where none has a plan, the first trial, with the error of the one that misses the budget by the least.
    """
    planned = [trial for trial in trials if trial.planned is not None]
    if not planned:
        return replace(trials[0], missed=_least(*(trial.missed for trial in trials)))
    hidden = max(trial.fused.hidden for trial in planned)
    least = min(trial.bytes(hidden) for trial in planned)
    chosen = next(trial for trial in planned if trial.bytes(hidden) <= RULES.slack * least)
    if (tracing := trace()) is not None:
        texts = (_verdict(trial, trial is chosen, trial.bytes(hidden), least) for trial in planned)
        tracing.note("chosen", "\n".join(texts))
    return chosen


def _least(*errors: BudgetError | None) -> BudgetError:
    return min((error for error in errors if error is not None), key=lambda error: error.reachable)


def _verdict(trial: Trial, is_chosen: bool, total: int, least: int) -> str:
    operators = f"{len(trial.fused.places)} fused operators" if trial.fused.places else "the user's operators"
    why = ": the most fused operators" if is_chosen else "" if total <= RULES.slack * least else ": too much memory"
    return f"{'taken' if is_chosen else 'left'}: {operators}, {total} bytes, {total / least:.2f} of the least{why}"


def inside(request: Request, fused: Fused, stock: Memory) -> Request:
    """The request for the graph with fused operators; ``stock`` is the memory of the user's own.

    A budget that is a fraction means a fraction of what the user's own graph holds.

    Raises:
        GraphError: MXNet finds other arguments in it than in the user's graph, or in another order.
    """
    options, frontend = request.options, request.frontend.on(fused.graph)
    expected, got = list(request.frontend.argument_names()), list(frontend.argument_names())
    if got != expected or len(fused.graph.heads) != len(request.graph.heads):
        raise GraphError(f"fused operators would change the arguments: expected {expected}, got {got}")
    if options.memory_budget is not None:
        options = replace(options, memory_budget=budget_bytes(options.memory_budget, stock.total))
    request = replace(request, graph=fused.graph, frontend=frontend, options=options)
    drawn: Workspaces = run((CountWorkspaces(),), [request], request.progress)[Workspaces]
    return replace(request, workspaces=drawn.bytes)


def stock_memory(request: Request, fused: Fused) -> Memory:
    """The memory of the user's own graph, with the bytes that its operators hold beyond planned memory."""
    frontend = request.frontend
    if request.details:
        training = frontend.differentiate()
        stock = memory(request, training, training.planned_bytes)
    else:
        stock = Memory(frontend.stock_bytes(), 0, request.static, {}, {})
    return replace(stock, static={**stock.static, HIDDEN: fused.hidden}) if fused.hidden else stock


def _explained(plan: Plan, fused: Fused, stock: Memory | None) -> Plan:
    """A plan of a graph with fused operators, as one of the user's graph; ``stock`` is None where none is fused."""
    plan = replace(plan, missed=fused.missed, notes=(*plan.notes, *_notes(fused, stock is not None)))
    return plan if stock is None else replace(plan, before=stock, applied="hook", fused=fused.places)


def _notes(fused: Fused, applied: bool) -> Iterator[str]:
    yield from fused.notes
    if applied:
        operators = ", ".join(f"{count} x {label}" for label, count in sorted(fused.counts.items()))
        same = all(name in MASKS for name, _ in fused.places)
        bits = "every bit stays" if same else "last bits differ from the user's own graph (fuse=False keeps them)"
        yield f"fused: {operators}; {bits}"
    shown = [missed for missed in fused.missed if missed.pattern not in QUIET and not missed.reason.startswith(SMALL)]
    for reason, count in Counter(missed.reason for missed in shown).most_common(3):
        first = next(missed.name for missed in shown if missed.reason == reason)
        yield f"{NOT_FUSED}{count} x, as {first!r}): {reason}"
