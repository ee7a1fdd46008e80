"""The log lines on the plans of a process: on a graph that is much larger than those before, and on all at the end."""

from __future__ import annotations

import atexit
import logging

from echo.plans.plan import Plan
from echo.system.threads import Lock

logger = logging.getLogger("echo")


class Summary:
    """Counts the ``graphs`` that were planned. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.graphs = self._unchanged = 0
        self._most, self._largest = -1, ""
        self._told = 0  # planned bytes of the largest graph that has a line

    def add(self, plan: Plan) -> None:
        """Logs a plan: the first one at the level ``INFO``, and one of a graph twice as large as those told before.

        The others are logged at ``DEBUG``: so the last line at ``INFO`` is that of about the largest graph.
        """
        with self._lock.held():
            first = not self.graphs
            told = plan.before.planned >= 2 * self._told
            self.graphs += 1
            self._unchanged += plan.changes_nothing
            if plan.before.planned > self._most:
                self._most, self._largest = plan.before.planned, _line(plan)
            self._told = max(plan.before.planned, 1) if told else self._told
        if first:
            atexit.register(self.log)
        logger.log(logging.INFO if told else logging.DEBUG, "echo: %s", _line(plan))

    def log(self) -> None:
        """Logs the line about all graphs, where there was more than one."""
        if self.graphs > 1:
            logger.info("echo: %s", self)

    def __str__(self) -> str:
        unchanged = f", {self._unchanged} of them as they were" if self._unchanged else ""
        return f"{self.graphs} graphs bound{unchanged}; the largest: {self._largest}"


def _line(plan: Plan) -> str:
    return plan.remarks[0] if plan.changes_nothing else plan.summary()
