"""From a request to a plan: the user's, one that this process remembers, one from the disk, or a new one."""

from __future__ import annotations

import copy
import json
import logging
import os
import weakref
from dataclasses import replace
from typing import Callable, ContextManager, NamedTuple, Protocol

from echo import pipeline
from echo.errors import REPORT, BudgetError, UnsupportedError
from echo.ir.graph import Graph
from echo.passes.request import Frontend, Request
from echo.passes.trace import trace
from echo.passes.trial import Planned
from echo.planning import store
from echo.planning.plan_files import key_of
from echo.planning.reuse import fitting
from echo.planning.store import Found
from echo.planning.what_if import WhatIf
from echo.plans.decisions import Decision, NoteKind
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.plans.summary import Summary
from echo.plans.why import Flip, Flipper
from echo.policies.warm_start import WarmStart
from echo.system.collect import without_garbage_collection
from echo.system.deadline import Deadline
from echo.system.locks import Lock
from echo.system.once import ONCE
from echo.system.own_binds import own_binds
from echo.system.progress import progress
from echo.system.trim import trim

logger = logging.getLogger("echo")


class Session(Frontend, Protocol):
    """A frontend that holds one graph of the user's; ``device_key`` says what measured seconds depend on."""

    graph: Graph

    @property
    def device_key(self) -> str: ...
    @property
    def why_no_hook(self) -> str: ...

    def on(self, graph: Graph) -> Session: ...

    def anew(self) -> Session:
        """The same session, which forgets what MXNet said of the graph's training."""

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
        self._plans: dict[str, Found | BudgetError] = {}
        self._firsts: dict[tuple[str, str], _First] = {}  # by model and options

    def forget(self) -> None:
        """Forgets all plans: the next one comes from the disk or from a search, as in a new process."""
        self._plans.clear()
        self._firsts.clear()

    def plan(
        self, session: Callable[[], Session], options: Options, details: bool = True, leader: Leader | None = None
    ) -> Found:
        """The plan of the graph of a session, and the graph to bind. With a ``leader``, the plan follows its choice.

        Raises:
            BudgetError: the budget cannot be met; this answer is remembered, too.
            PlanError: the user gave plans, and none was made for this graph.
            UnsupportedError: under ``strict``, the native hook cannot be used; without, that costs one warning.
        """
        with self.lock.held(), own_binds(), without_garbage_collection():
            frontend = session()
            _check_hook(frontend, options)
            with frontend.measuring():
                deadline = Deadline.after(options.max_planning)
                request = Request(frontend.graph, options, frontend, details=details, follows=leader is not None,
                                  deadline=deadline)  # fmt: skip
                if options.plans:
                    plan, graph, base = fitting(options.plans, frontend.graph, frontend)
                    result = Found(plan, graph, base, frontend.on(base).chunks(graph))
                else:
                    result = self._remembered(request, frontend, leader)
            # a plan that is kept must not keep a training graph
            fresh = frontend.on(result.base).anew()
            base_request = replace(request, graph=result.base, frontend=fresh)
            flipper = self._flipper(base_request, fresh.measuring, result.plan)
            return result._replace(plan=result.plan.with_flipper(flipper))

    def _flipper(self, request: Request, measuring: Callable[[], ContextManager[None]], plan: Plan) -> Flipper:
        flips = WhatIf(request, plan)

        def flip(decision: Decision) -> Flip:
            with self.lock.held(), own_binds(), measuring():
                return flips(decision)

        return flip

    def _remembered(self, request: Request, session: Session, leader: Leader | None) -> Found:
        key = _key_of(request, session, leader)
        if key not in self._plans:
            result = self._loaded_or_searched(key, request, session, leader)
            while len(self._plans) >= self._most:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = result
        remembered = self._plans[key]
        if isinstance(remembered, BudgetError):
            raise copy.copy(remembered)  # the remembered error must not keep what its traceback refers to
        return remembered

    def _loaded_or_searched(
        self, key: str, request: Request, session: Session, leader: Leader | None
    ) -> Found | BudgetError:
        result = None if trace() is not None else store.load(key, request.graph, session)
        if result is not None:
            return result
        try:
            if leader is None:
                planned = self._search(request)
            else:
                planned = _planned(request, self._warm_start_of(leader, request))
        except BudgetError as error:
            return copy.copy(error)
        result = Found(planned.plan, planned.graph, planned.base, session.on(planned.base).chunks(planned.graph))
        for note in result.plan.failed:
            advice = "max_planning=None waits for the best" if note.kind is NoteKind.LATE else REPORT
            logger.log(logging.WARNING if ONCE.first(note.text) else logging.DEBUG, "echo: %s. %s.", note, advice)
        if not result.plan.failed:  # a failure may be chance or lack of time: the next start tries again
            store.save(key, result.plan, result.chunks)
        return result

    def _search(self, request: Request) -> Planned:
        family, fingerprint = (request.frontend.family, request.options.key), request.frontend.subject.fingerprint
        first = self._firsts.get(family)
        # the same graph is searched without its own warm start: its plan does not depend on the order of searches
        planned = _planned(request, None if first is None or first.fingerprint == fingerprint else first.warm_start)
        self._firsts.setdefault(family, _First(fingerprint, weakref.ref(planned.graph), planned.warm_start))
        return planned

    def _warm_start_of(self, leader: Leader, request: Request) -> WarmStart:
        """The leader's choice: remembered where the leader was searched first, else read from its marks."""
        first = self._firsts.get((request.frontend.family, request.options.key))
        if first is None or first.warm_start is None or first.bound() is not leader.graph:
            return leader.warm_start(request.options)
        return first.warm_start.by_roles()


def _check_hook(session: Session, options: Options) -> None:
    text = f"without the native hook, plans save less: {session.why_no_hook}"
    if session.why_no_hook and options.strict:
        raise UnsupportedError(text)
    if session.why_no_hook and ONCE.first(text):
        logger.warning("echo: %s", text)


def _key_of(request: Request, session: Session, leader: Leader | None) -> str:
    names = json.dumps([node.name for node in request.graph.nodes])  # the plan that the user reads has them
    parts = [session.subject.fingerprint, names, str(session.hook), session.device_key]
    parts += [request.options.key, str(request.details), session.why_no_fusion if request.options.fuse else ""]
    parts += [f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith(("MXNET_", "NNVM_"))]
    return key_of(parts if leader is None else [*parts, leader.key])


def _planned(request: Request, warm_start: WarmStart | None) -> Planned:
    try:
        with progress() as show:
            return pipeline.plan(replace(request, progress=show, warm_start=warm_start))
    finally:
        trim()
