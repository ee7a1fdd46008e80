"""One plan for every process of a job: rank 0 plans a graph, and the other ranks take its schedule.

Operators take different times on every rank, so that plans of their own would differ, and with them the memory. Rank 0
writes its schedule to the key-value store of the default process group, under a key of the graph and the limits. This
is no collective: a rank that compiles in another order, once more, or alone waits for no rank that waits for it. A rank
that finds no plan in time plans for itself; collectives run in the same order under every schedule of a graph.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from echo.errors import BudgetError, PlanError, one_line, reraise_interruption
from echo.system.files import digest_of
from echo.system.process import Deadline
from echo.system.threads import ONCE
from echo.torch import compat
from echo.torch.capture import JointGraph
from echo.torch.plan import GraphPlan, on_graph
from echo.torch.planned_graph import PlannedGraph, fingerprint

logger = logging.getLogger(__name__)

_SLACK = 30.0  # seconds that rank 0 may be behind, besides those of its search
_POLL = 0.02  # seconds between two looks: a wait inside of the store would block other users of the connection
_SHARE_AFTER_MISS = 0.25  # of the wait: stages of a pipeline have graphs that rank 0 never compiles

Plan = Callable[[], GraphPlan]
GraphOf = Callable[[Sequence[float]], PlannedGraph]


@dataclass
class Ranks:
    """Shares the plans of one backend between the ranks of the default process group.

    Args:
        limits: identifies the limits that plans are made for; ranks with other limits share nothing.
        wait: seconds to wait for rank 0's plan of a graph. It shrinks with each graph without one.
    """

    limits: str
    wait: float

    @staticmethod
    def of(limits: str, max_planning: float) -> Ranks:
        """The ranks of a backend whose search may take ``max_planning`` seconds."""
        return Ranks(limits, max_planning + _SLACK)

    def shared(self, joint: JointGraph, plan: Plan, graph_of: GraphOf) -> GraphPlan:
        """The plan of a graph: ``plan()`` on rank 0 and without a process group, else what rank 0 has planned.

        ``graph_of`` is what plans keep of the graph, given the seconds of its nodes.

        Raises:
            BudgetError: rank 0 found no plan within the budget.
            PlanError: planning failed on rank 0.
        """
        store = compat.store_of_ranks()
        if store is None:
            return plan()
        key = f"echo/{fingerprint(joint)}/{digest_of('echo torch limits 1', self.limits.encode())[:16]}"
        if compat.rank() == 0:
            return _published(store, key, plan, graph_of)
        text = _awaited(store, key, self.wait)
        if text is not None:
            return _received(json.loads(text), graph_of)
        message = f"rank {compat.rank()} plans for itself: rank 0 gave no plan of a graph within {self.wait:g} s"
        logger.log(logging.WARNING if ONCE.first("a rank plans for itself") else logging.DEBUG, "echo: %s", message)
        self.wait *= _SHARE_AFTER_MISS
        return plan()


def _published(store: Any, key: str, plan: Plan, graph_of: GraphOf) -> GraphPlan:
    """Rank 0's plan, which the other ranks find in the store; the first one of a graph stays."""
    text = _awaited(store, key, 0.0)
    if text is not None:
        value = json.loads(text)
        if "schedule" in value:
            return _received(value, graph_of)
    try:
        made = plan()
    except Exception as error:
        budget = list(error.__reduce__()[1]) if isinstance(error, BudgetError) else None
        _put(store, key, {"budget_error": budget, "error": one_line(error)})
        raise
    schedule = [[number, list(positions)] for number, positions in sorted(made.schedule.items())]
    _put(store, key, {"schedule": schedule, "seconds": list(made.graph.seconds), "budget_bytes": made.budget_bytes})
    return made


def _put(store: Any, key: str, value: Any) -> None:
    try:
        store.set(key, json.dumps(value))
    except Exception as error:  # whatever a kind of store raises: the other ranks plan for themselves
        reraise_interruption(error)
        logger.debug("echo: rank 0 could not write a plan: %s", one_line(error))


def _awaited(store: Any, key: str, seconds: float) -> str | None:
    """The value of a key; None if it is not there in time, or the store is gone."""
    deadline = Deadline.after(seconds)
    try:
        while not store.check([key]):
            if deadline.is_over:
                return None
            time.sleep(_POLL)
        return str(store.get(key), "utf-8")
    except Exception as error:  # whatever a kind of store raises
        reraise_interruption(error)
        logger.debug("echo: the store of the process group has no plan: %s", one_line(error))
        return None


def _received(value: Any, graph_of: GraphOf) -> GraphPlan:
    if value.get("budget_error"):
        raise BudgetError(*value["budget_error"])
    if "schedule" not in value:
        raise PlanError(f"rank 0 could not plan it: {value['error']}")
    schedule = {number: tuple(positions) for number, positions in value["schedule"]}
    return on_graph(graph_of(value["seconds"]), schedule, value["budget_bytes"])
