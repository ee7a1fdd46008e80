"""From a request to a plan: one that the user gave, one that is remembered, one on the disk, or a new one."""

from __future__ import annotations

import copy
import json
import logging
import os
import weakref
from dataclasses import replace
from typing import Callable, ContextManager, NamedTuple, Protocol

from echo import pipeline
from echo.errors import REPORT, BudgetError
from echo.ir.graph import Graph
from echo.passes.request import Frontend, Request
from echo.passes.trace import trace
from echo.passes.trial import Planned
from echo.planning import store
from echo.planning.reuse import fitting
from echo.planning.store import Found
from echo.planning.what_if import WhatIf
from echo.plans.decisions import Decision
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.plans.why import Flip, Flipper
from echo.policies.warm_start import WarmStart
from echo.system.collect import without_garbage_collection
from echo.system.deadline import Deadline
from echo.system.locks import Lock
from echo.system.own_binds import own_binds
from echo.system.progress import progress
from echo.system.trim import trim

logger = logging.getLogger("echo")


class Session(Frontend, Protocol):
    """A frontend that holds one graph of the user's; ``device_key`` says what measured seconds depend on."""

    graph: Graph

    @property
    def device_key(self) -> str: ...

    def on(self, graph: Graph) -> Session: ...

    def anew(self) -> Session:
        """The same without what it remembers of the graph's training."""

    def chunks(self, graph: Graph) -> tuple[int, ...] | None:
        """The bytes of each chunk of memory that MXNet wants for a graph that it was asked about, else None."""

    def measuring(self) -> ContextManager[None]:
        """All that is measured while this is open is measured in one process."""


class Leader(Protocol):
    """A bind whose choice others of the same model follow, since they share its memory; equal keys mean equal binds."""

    @property
    def graph(self) -> Graph: ...
    @property
    def key(self) -> str: ...

    def hint(self, options: Options) -> WarmStart:
        """What it chose."""


class _First(NamedTuple):
    """The first graph of a model that was searched, what is bound for it as long as somebody holds that, its hint."""

    fingerprint: str
    bound: Callable[[], Graph | None]
    hint: WarmStart | None


class Planner:
    """Plans graphs, and remembers the plans: one for each graph, its shapes, options and settings of MXNet.

    Threads may share it; one of them plans at a time. ``most`` plans are kept in memory: as many shapes of one model as
    buckets are usual.
    """

    def __init__(self, most: int = 64) -> None:
        self.lock = Lock()
        self._most = most
        self._plans: dict[str, Found | BudgetError] = {}
        self._firsts: dict[tuple[str, str], _First] = {}  # by model and options
        self._told: set[str] = set()  # twenty buckets that fail alike are one line

    def forget(self) -> None:
        """Has the next plan be made as in a new process: from the disk, or searched."""
        self._plans.clear()
        self._firsts.clear()

    def plan(
        self, session: Callable[[], Session], options: Options, details: bool = True, leader: Leader | None = None
    ) -> Found:
        """The plan of the graph of a session, and the graph to bind. With a ``leader`` its choice is taken.

        Raises:
            BudgetError: the budget cannot be met; that is remembered, too.
            PlanError: the user gave plans, and none was made for this graph.
        """
        with self.lock.held(), own_binds(), without_garbage_collection():
            own = session()
            with own.measuring():
                follows, deadline = leader is not None, Deadline.after(options.max_planning)
                request = Request(own.graph, options, own, details=details, follows=follows, deadline=deadline)
                if options.plans:
                    plan, graph, base = fitting(options.plans, own.graph, own)
                    found = Found(plan, graph, base, own.on(base).chunks(graph))
                else:
                    found = self._remembered(request, own, leader)
            # who keeps the plan does not keep a training graph
            fresh = own.on(found.base).anew()
            asked = replace(request, graph=found.base, frontend=fresh)
            return found._replace(plan=found.plan.with_flipper(self._flipper(asked, fresh.measuring, found.plan)))

    def _flipper(self, request: Request, measuring: Callable[[], ContextManager[None]], plan: Plan) -> Flipper:
        flips = WhatIf(request, plan)

        def flip(decision: Decision) -> Flip:
            with self.lock.held(), own_binds(), measuring():
                return flips(decision)

        return flip

    def _remembered(self, request: Request, session: Session, leader: Leader | None) -> Found:
        key = _key_of(request, session, leader)
        if key not in self._plans:
            found = self._loaded_or_made(key, request, session, leader)
            while len(self._plans) >= self._most:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = found
        known = self._plans[key]
        if isinstance(known, BudgetError):
            raise copy.copy(known)  # the one that is kept must not keep what its traceback refers to
        return known

    def _loaded_or_made(
        self, key: str, request: Request, session: Session, leader: Leader | None
    ) -> Found | BudgetError:
        found = None if trace() is not None else store.load(key, request.graph, session)
        if found is not None:
            return found
        try:
            made = self._search(request) if leader is None else _planned(request, self._hint_of(leader, request))
        except BudgetError as error:
            return copy.copy(error)
        found = Found(made.plan, made.graph, made.base, session.on(made.base).chunks(made.graph))
        for text in found.plan.failed:
            advice = "max_planning=None waits for the best" if text == request.late_line else REPORT
            logger.log(logging.DEBUG if text in self._told else logging.WARNING, "echo: %s. %s.", text, advice)
            self._told.add(text)
        if not found.plan.failed:  # by chance, or for lack of time: the next start tries again
            store.save(key, found.plan, found.chunks)
        return found

    def _search(self, request: Request) -> Planned:
        family, own = (request.frontend.family, request.options.key), request.frontend.subject.fingerprint
        first = self._firsts.get(family)
        # the same graph is searched as it was before: what comes out never depends on who asked first
        made = _planned(request, None if first is None or first.fingerprint == own else first.hint)
        self._firsts.setdefault(family, _First(own, weakref.ref(made.graph), made.hint))
        return made

    def _hint_of(self, leader: Leader, request: Request) -> WarmStart:
        """What the leader chose: known where it was the first that was searched, else read from its marks, as equal."""
        first = self._firsts.get((request.frontend.family, request.options.key))
        if first is None or first.hint is None or first.bound() is not leader.graph:
            return leader.hint(request.options)
        return first.hint


def _key_of(request: Request, session: Session, leader: Leader | None) -> str:
    names = json.dumps([node.name for node in request.graph.nodes])  # they are in the plan that the user reads
    asked = [session.subject.fingerprint, names, str(session.hook), session.device_key]
    asked += [request.options.key, str(request.details), session.why_no_fusion if request.options.fuse else ""]
    asked += [f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith(("MXNET_", "NNVM_"))]
    return store.key_of(asked if leader is None else [*asked, leader.key])


def _planned(request: Request, hint: WarmStart | None) -> Planned:
    try:
        with progress() as show:
            return pipeline.plan(replace(request, progress=show, hint=hint))
    finally:
        trim()
