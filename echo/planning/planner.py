"""From a request to a plan: the user's, one that this process remembers, one from the disk, or a new one."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import weakref
from dataclasses import replace
from typing import Callable, ContextManager, Iterator, NamedTuple, Protocol

from echo import pipeline
from echo.errors import REPORT, BudgetError, GraphError, UnsupportedError, one_line
from echo.ir.graph import Graph
from echo.passes.pass_manager import stage_dump
from echo.passes.request import Framework, Request
from echo.passes.variant import PlanResult
from echo.planning import plan_cache
from echo.planning.plan_cache import key_of
from echo.planning.reuse import (
    FEW_OPERATORS,
    Names,
    NothingToGain,
    PlannedGraph,
    SpareTime,
    fitting,
    follow,
    warm_start_of,
)
from echo.planning.what_if import WhatIf
from echo.plans.decisions import Decision, Note, NoteKind
from echo.plans.options import SEARCH, Options
from echo.plans.plan import Plan, Summary
from echo.plans.text import Alternative, Alternatives
from echo.policies.least import Known
from echo.policies.problem import WarmStart
from echo.system.process import Deadline, trim_after, without_garbage_collection
from echo.system.terminal import progress
from echo.system.threads import ONCE, Lock, own_binds

logger = logging.getLogger("echo")
_CONTINUED = 3  # a start that continues a stopped search takes at most this part of max_planning


class PlanningFramework(Framework, Protocol):
    """A framework that holds one graph of the user's; ``device_key`` says what measured seconds depend on."""

    graph: Graph

    @property
    def device_key(self) -> str: ...
    @property
    def why_no_hook(self) -> str: ...

    def on(self, graph: Graph) -> PlanningFramework: ...

    def fresh_copy(self) -> PlanningFramework:
        """Returns the same framework without what MXNet said of the graph's training."""

    def chunks(self, graph: Graph) -> tuple[int, ...] | None:
        """The bytes of each chunk of memory that MXNet wants for a graph that it was asked about, else None."""

    def measuring(self) -> ContextManager[None]:
        """A context in which one process measures all operators."""


class Leader(Protocol):
    """A bind whose memory other binds of the same model share, so that they follow its choice.

    Leaders with equal keys are equal binds.
    """

    @property
    def graph(self) -> Graph: ...
    @property
    def key(self) -> str: ...

    def warm_start(self, options: Options) -> WarmStart:
        """Returns the leader's choice as the warm start for the plans of its followers."""


class _First(NamedTuple):
    """The first searched graph of a model, a weak reference to the graph that was bound for it, and its warm start."""

    fingerprint: str
    bound: Callable[[], Graph | None]
    warm_start: WarmStart | None


class Planner:
    """Plans graphs, and remembers the plans: one for each graph, its shapes, options and settings of MXNet.

    Threads may share it; one of them plans at a time. ``most`` plans are kept in memory: more than the shapes that a
    model with buckets usually has. ``summary`` counts the plans that were bound, whoever made them.
    """

    def __init__(self, most: int = 64) -> None:
        self.lock = Lock()
        self.summary = Summary()
        self._most = most
        self._plans: dict[str, PlannedGraph | BudgetError] = {}
        self._firsts: dict[tuple[str, str], _First] = {}  # by model and options
        self._models: dict[tuple[str, str, str], PlannedGraph] = {}  # the plans that further shapes follow
        self._known: dict[str, Known] = {}
        self._nothing_to_gain = NothingToGain()
        self.spare_time = SpareTime()

    def forget(self) -> None:
        """Forgets all plans: the next one comes from the disk or from a search, as in a new process."""
        self._plans.clear()
        self._firsts.clear()
        self._models.clear()
        self._known.clear()
        self._nothing_to_gain = NothingToGain()

    def plan(
        self,
        make_framework: Callable[[], PlanningFramework],
        options: Options,
        details: bool = True,
        leader: Leader | None = None,
        further: bool = False,
    ) -> PlannedGraph:
        """Returns the plan of a framework's graph, and the graph to bind.

        With a ``leader``, the plan follows its choice. The planner's ``spare_time`` pays for ``further`` shapes of a
        model that has a plan.

        Raises:
            BudgetError: the budget cannot be met; this answer is remembered, too.
            PlanError: the user gave plans, and none was made for this graph.
            UnsupportedError: under ``strict``, the native hook cannot be used; without, that costs one warning.
        """
        with self._planning(further):
            return self._plan(make_framework(), options, details, leader)

    def _plan(
        self, framework: PlanningFramework, options: Options, details: bool, leader: Leader | None
    ) -> PlannedGraph:
        # a function of its own: what it made is gone when Python searches for garbage again
        _check_hook(framework, options)
        with framework.measuring():
            deadline = Deadline.after(options.max_planning)
            request = Request(framework.graph, options, framework, details=details, follows=leader is not None,
                              deadline=deadline)  # fmt: skip
            if options.plans:
                plan, graph, base = fitting(options.plans, framework.graph, framework)
                names = Names.of(framework.graph, base)
                result = PlannedGraph(plan, graph, base, framework.on(base).chunks(graph), names)
            else:
                result = self._remembered(request, framework, leader)
                if leader is None:
                    self._remember_model(_model_of(framework, options), result)
                    self._nothing_to_gain.note(framework.graph, options, result.plan)
        return self._with_alternatives(request, framework, result)

    def has_nothing_to_gain(
        self, graph: Graph, make_framework: Callable[[], PlanningFramework], options: Options
    ) -> bool:
        """Whether a tiny graph need not be planned, since one that differs in numbers alone came out unchanged."""
        if not self.may_follow(options) or options.user_constraints:
            return False
        with self._planning(further=False):
            return self._nothing_to_gain.holds(graph, make_framework, options)

    def follow(self, make_framework: Callable[[], PlanningFramework], options: Options) -> PlannedGraph | None:
        """Returns the plan for further shapes of a model without a search.

        It is the plan for just these shapes if there is one in memory or on the disk, else the plan of the model's
        first shapes (`echo.planning.reuse`). None if there is neither, or it does not hold for these shapes.
        """
        with self._planning(further=True):
            framework = make_framework()
            request = Request(framework.graph, options, framework)
            key = _key_of(request, framework, None)
            exact = self._plans.get(key) or plan_cache.load(key, framework.graph, framework)
            result = exact.for_graph(framework.graph, framework) if isinstance(exact, PlannedGraph) else None
            model = self._models.get(_model_of(framework, options))
            try:
                if result is None and model is not None:
                    result = follow(model, framework.graph, framework, options)
            except GraphError as error:
                logger.debug("echo: the plan of the first shapes does not hold for others: %s", one_line(error))
            return None if result is None else self._with_alternatives(request, framework, result)

    def _remember_model(self, key: tuple[str, str, str], result: PlannedGraph) -> None:
        model = self._models.get(key)
        if model is None or (model.plan.changes_nothing and not result.plan.changes_nothing):
            while len(self._models) >= self._most:
                del self._models[next(iter(self._models))]
            self._models[key] = result

    def may_follow(self, options: Options) -> bool:
        """Whether a plan with these options may be the plan of other shapes: a budget and given plans hold for one."""
        return options.policy == SEARCH and options.memory_budget is None and not options.plans

    @contextlib.contextmanager
    def _planning(self, further: bool) -> Iterator[None]:
        with self.lock.held(), own_binds(), without_garbage_collection(), self.spare_time.planning(further):
            yield

    def _with_alternatives(self, request: Request, framework: PlanningFramework, result: PlannedGraph) -> PlannedGraph:
        # a plan that is kept must not keep a training graph
        fresh = framework.on(result.base).fresh_copy()
        base_request = replace(request, graph=result.base, framework=fresh)
        alternatives = self._what_if(base_request, fresh.measuring, result.plan)
        return result._replace(plan=result.plan.with_alternatives(alternatives))

    def _what_if(self, request: Request, measuring: Callable[[], ContextManager[None]], plan: Plan) -> Alternatives:
        what_if = WhatIf(request, plan)

        def alternative(decision: Decision) -> Alternative:
            with self.lock.held(), own_binds(), measuring():
                return what_if(decision)

        return alternative

    def _remembered(self, request: Request, framework: PlanningFramework, leader: Leader | None) -> PlannedGraph:
        key = _key_of(request, framework, leader)
        result = self._plans.pop(key, None)
        if isinstance(result, PlannedGraph):
            result = result.for_graph(request.graph, framework)
        if result is None:
            result = self._loaded_or_searched(key, request, framework, leader)
        while len(self._plans) >= self._most:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = result  # the last one: the first is the one that was not used for the longest time
        if isinstance(result, BudgetError):
            raise copy.copy(result)  # the remembered error must not keep what its traceback refers to
        return result

    def _loaded_or_searched(
        self, key: str, request: Request, framework: PlanningFramework, leader: Leader | None
    ) -> PlannedGraph | BudgetError:
        stored = None if stage_dump() is not None else plan_cache.load(key, request.graph, framework)
        if stored is not None and not stored.plan.is_late:
            return stored
        if stored is not None:
            request = replace(request, deadline=request.deadline.part(_CONTINUED))
        knows = request.options.memory_budget is not None and request.options.policy == SEARCH
        request = replace(request, known=self._known_of(framework)) if knows else request
        try:
            if leader is None:
                planned = self._search(request, stored, framework)
            else:
                planned = _planned(request, self._warm_start_of(leader, request))
        except BudgetError as error:
            if knows:
                plan_cache.keep_known(framework.key.fingerprint, request.known)
            return copy.copy(error.repeating(request.options.memory_budget))
        if stored is not None and planned.plan.is_late and _cost(stored.plan) <= _cost(planned.plan):
            return _settled(key, stored)
        chunks = framework.on(planned.base).chunks(planned.graph)
        result = PlannedGraph(planned.plan, planned.graph, planned.base, chunks, Names.of(request.graph, planned.base))
        for note in result.plan.failed:
            more = "max_planning=None (--max-planning none, ECHO_MAX_PLANNING=none) waits for the best"
            advice = more if note.kind is NoteKind.LATE else REPORT
            logger.log(logging.WARNING if ONCE.first(note.text) else logging.DEBUG, "echo: %s. %s.", note, advice)
        if _is_worth_keeping(result.plan, request.options):
            plan_cache.save(key, result)
        return result

    def _known_of(self, framework: PlanningFramework) -> Known:
        """What searches for budgets of this graph found, in this process or before: a least that was named is met."""
        fingerprint = framework.key.fingerprint
        if fingerprint not in self._known:
            while len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[fingerprint] = plan_cache.load_known(fingerprint)
        return self._known[fingerprint]

    def _search(self, request: Request, stored: PlannedGraph | None, framework: PlanningFramework) -> PlanResult:
        """Searches for a plan. The warm start is the plan that a search stopped at, or a plan of the same model."""
        family, fingerprint = (request.framework.family, request.options.key), request.framework.key.fingerprint
        first = self._firsts.get(family)
        warm_start = None
        if stored is not None:
            warm_start = warm_start_of(stored.base, stored.plan, request.options, framework.on(stored.base))
        elif first is not None and first.fingerprint != fingerprint:
            # the same graph is searched without its own warm start: its plan does not depend on the order of searches
            warm_start = first.warm_start
        planned = _planned(request, warm_start)
        warm_start = planned.warm_start or warm_start
        self._firsts.setdefault(family, _First(fingerprint, weakref.ref(planned.graph), warm_start))
        return planned

    def _warm_start_of(self, leader: Leader, request: Request) -> WarmStart:
        """The leader's choice: remembered where the leader was searched first, else read from its marks."""
        first = self._firsts.get((request.framework.family, request.options.key))
        if first is None or first.warm_start is None or first.bound() is not leader.graph:
            return leader.warm_start(request.options)
        return first.warm_start.by_roles()


def _check_hook(framework: PlanningFramework, options: Options) -> None:
    text = f"without the native hook, plans save less: {framework.why_no_hook}"
    if framework.why_no_hook and options.strict:
        raise UnsupportedError(text)
    if framework.why_no_hook and ONCE.first(text):
        logger.warning("echo: %s", text)


def _model_of(framework: PlanningFramework, options: Options) -> tuple[str, str, str]:
    return framework.family, framework.key.graph, options.key


def _key_of(request: Request, framework: PlanningFramework, leader: Leader | None) -> str:
    # plans of graphs under other names are renamed, but for names that the user's options refer to
    names = json.dumps([node.name for node in request.graph.nodes]) if request.options.user_constraints else ""
    parts = [framework.key.fingerprint, names, str(framework.hook), framework.device_key]
    parts += [request.options.key, str(request.details), framework.why_no_fusion if request.options.fuses else ""]
    parts += [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(("MXNET_", "NNVM_"))]
    return key_of(parts if leader is None else [*parts, leader.key])


def _is_worth_keeping(plan: Plan, options: Options) -> bool:
    """Whether the next start should find the plan on the disk.

    A plan that failed in part is not kept, since the failure may be chance; nor is one by a function of the user, whose
    code may be another by then. One that changes nothing about a small
    graph takes about as long to read as to make.
    """
    if any(note.kind is NoteKind.FAILED for note in plan.notes) or not isinstance(options.policy, str):
        return False
    return not plan.changes_nothing or sum(plan.key.operators.values()) > FEW_OPERATORS


def _settled(key: str, result: PlannedGraph) -> PlannedGraph:
    """Saves a plan that a search stopped at, and from which another found nothing better, as one to take as it is.

    Else each start of a program would search for as long again.
    """
    notes = tuple(Note(note.text) if note.kind is NoteKind.LATE else note for note in result.plan.notes)
    settled = result._replace(plan=replace(result.plan, notes=notes))
    plan_cache.save(key, settled)
    return settled


def _cost(plan: Plan) -> tuple[int, float]:
    return plan.after.chosen, plan.overhead_seconds


def _planned(request: Request, warm_start: WarmStart | None) -> PlanResult:
    try:
        with progress() as show:
            return pipeline.plan(replace(request, progress=show, warm_start=warm_start))
    finally:
        trim_after(len(request.graph.nodes))
