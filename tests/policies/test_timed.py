"""A policy whose time is over gives the best that it looked at. The clock is made here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from echo.ir.schedule import Splits
from echo.ir.training_graph import PEAK
from echo.policies.data_problem import problem_of_graph
from echo.policies.problem import Problem
from echo.policies.timed import chosen_in_time
from echo.system.process import Deadline, OutOfTime
from tests.data_graphs import chain


@dataclass(frozen=True)
class Tries:
    """Evaluates these nodes one after the other, all of them before, and gives up none of its own accord."""

    tried: Sequence[Sequence[int]]
    ranges: tuple[int, ...] = (1,)
    limit: int | None = None
    name: str = "tries"

    def choose(self, problem: Problem) -> Splits:
        for nodes in self.tried:
            problem.evaluator.evaluate(problem.choice(nodes), self.ranges, self.limit, problem.splits(nodes))
        return problem.splits(self.tried[-1])


PROBLEM = problem_of_graph(*chain(8))
MANY, FEW, NONE = (1, 2, 3, 4, 5), (3,), ()


def within(looks: int, policy: Tries) -> tuple[Splits, bool]:
    return chosen_in_time(policy, replace(PROBLEM, deadline=hurried(looks)))


def hurried(looks: int) -> Deadline:
    """Over after so many looks."""
    left = [looks]

    class Hurried(Deadline):
        @property
        def is_over(self) -> bool:
            left[0] -= 1
            return left[0] < 0

    return Hurried(1.0, 1.0, 1.0)


def test_without_a_deadline_the_choice_is_the_policys() -> None:
    assert chosen_in_time(Tries([MANY, FEW]), PROBLEM) == (PROBLEM.splits(FEW), True)


def test_a_policy_that_comes_to_its_end() -> None:
    assert within(100, Tries([MANY, FEW])) == (PROBLEM.splits(FEW), True)


def test_the_best_so_far_is_taken() -> None:
    value = {nodes: PROBLEM.value(PROBLEM.splits(nodes)).bytes for nodes in (MANY, FEW, NONE)}
    best = min((FEW, MANY), key=lambda nodes: value[nodes])
    assert value[best] < value[NONE]
    worse = FEW if best is MANY else MANY
    assert within(2, Tries([best, worse, NONE])) == (PROBLEM.splits(best), False)
    assert within(0, Tries([best])) == ({}, False), "nothing was looked at"


def test_values_that_are_not_exact_do_not_count() -> None:
    assert within(1, Tries([MANY, FEW], ranges=(PEAK,))) == ({}, False)
    assert within(1, Tries([MANY, FEW], limit=0)) == ({}, False)


def test_a_policy_may_notice_by_itself() -> None:
    class Late(Tries):
        def choose(self, problem: Problem) -> Splits:
            raise OutOfTime

    assert within(100, Late([])) == ({}, False)
