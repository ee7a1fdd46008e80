"""The log lines on the plans of a process: the first plan at once, all of them in one line when the process ends."""

from __future__ import annotations

import atexit
import logging

from echo.plans.plan import Plan
from echo.system.locks import Lock

logger = logging.getLogger("echo")


class Summary:
    """Counts the ``graphs`` that were planned. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.graphs = self._unchanged = 0
        self._most, self._largest = -1, ""

    def add(self, plan: Plan) -> None:
        """Logs a plan: the first of the process at the level ``INFO``, the others at ``DEBUG``."""
        with self._lock.held():
            first = not self.graphs
            self.graphs += 1
            self._unchanged += plan.changes_nothing
            if plan.before.planned > self._most:
                self._most, self._largest = plan.before.planned, _line(plan)
        if first:
            atexit.register(self.log)
        logger.log(logging.INFO if first else logging.DEBUG, "echo: %s", _line(plan))

    def log(self) -> None:
        """Logs the line about all graphs, where there was more than one."""
        if self.graphs > 1:
            logger.info("echo: %s", self)

    def __str__(self) -> str:
        unchanged = f", {self._unchanged} of them as they were" if self._unchanged else ""
        return f"{self.graphs} graphs bound{unchanged}; the largest: {self._largest}"


def _line(plan: Plan) -> str:
    return plan.remarks[0] if plan.changes_nothing else plan.summary()
