"""The registry of policies, its two policies of one line, and functions of users as policies."""

from __future__ import annotations

import numbers
import operator
from dataclasses import dataclass
from typing import Any, Mapping

from echo.errors import OptionError, one_line, reraise_interruption
from echo.ir.schedule import RecomputeSchedule
from echo.plans.options import PolicyFunction, policy_name
from echo.policies.echo import Echo
from echo.policies.ilp import IntegerProgram
from echo.policies.mincut import Mincut
from echo.policies.problem import Policy, Problem
from echo.policies.search import Search
from echo.policies.sublinear import Sublinear
from echo.system.process import DeadlineExceeded


@dataclass(frozen=True)
class RecomputeAll:
    """Recomputes all candidates; ignores the limits."""

    name: str = "all"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        return problem.splits(problem.candidates)


@dataclass(frozen=True)
class RecomputeNone:
    """Recomputes only the nodes that the user insists on; ignores the limits."""

    name: str = "none"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        return {}


@dataclass(frozen=True)
class UserPolicy:
    """A function of the user, whose schedules are checked."""

    function: PolicyFunction

    @property
    def name(self) -> str:
        return policy_name(self.function)

    def choose(self, problem: Problem) -> RecomputeSchedule:
        """Returns the function's schedule.

        Raises:
            OptionError: it is no schedule of this problem, or the function raised; the message names the node, or
                what was raised.
        """
        try:
            schedule: Any = self.function(problem)
        except DeadlineExceeded:
            raise
        except Exception as error:
            reraise_interruption(error)
            raise OptionError(f"policy {self.name}: {one_line(error)}") from error
        if not isinstance(schedule, Mapping):
            raise OptionError(f"policy {self.name}: expected a mapping from nodes to positions, got {schedule!r}")
        return dict(self._checked(problem, number, positions) for number, positions in schedule.items())

    def _checked(self, problem: Problem, number: Any, positions: Any) -> tuple[int, tuple[int, ...]]:
        if not isinstance(number, numbers.Integral) or number not in problem.candidates:
            raise OptionError(f"policy {self.name}: {number!r} is no candidate for recomputation, expected keys of "
                              "`problem.candidates`")  # fmt: skip
        name, nodes = problem.training.nodes[number].name, problem.training.nodes
        try:
            checked = tuple(map(operator.index, positions))
        except TypeError:
            raise OptionError(f"policy {self.name}: {name!r}: expected positions, got {positions!r}") from None
        ascend = all(one < other for one, other in zip(checked, checked[1:]))
        if not checked or not ascend or checked[0] < 0 or checked[-1] >= len(nodes) or nodes[checked[0]].forward:
            raise OptionError(f"policy {self.name}: {name!r}: expected positions of backward nodes, ascending, "
                              f"got {positions!r}")  # fmt: skip
        if len(checked) > 1 and not problem.may_split:
            raise OptionError(f"policy {self.name}: {name!r}: expected one position, since each node is recomputed at "
                              f"most once here, got {positions!r}")  # fmt: skip
        return int(number), checked


POLICIES: tuple[Policy, ...] = (
    Search(),
    Echo(),
    Sublinear(),
    Mincut(),
    IntegerProgram(),
    RecomputeAll(),
    RecomputeNone(),
)


def policy_of(policy: str | PolicyFunction) -> Policy:
    """Returns the policy of this name, or a function of the user as a policy.

    Raises:
        OptionError: there is none.
    """
    if not isinstance(policy, str):
        return UserPolicy(policy)
    for each in POLICIES:
        if each.name == policy:
            return each
    raise OptionError(f"policy: expected one of {', '.join(each.name for each in POLICIES)}, got {policy!r}")
