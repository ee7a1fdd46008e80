"""`all` and `none` ignore the limits; schedules of users' functions are checked, and never written to a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.ir.schedule import RecomputeSchedule, first_backward
from echo.planning import plan_cache
from echo.policies import RecomputeAll, RecomputeNone
from echo.policies.data_graph import problem_of_graph
from echo.policies.problem import Problem
from tests.support.data_graphs import unrolled


def test_every_candidate_runs_again_once_whatever_the_limits() -> None:
    problem = problem_of_graph(*unrolled(2), max_seconds=0.0, max_bytes=0)
    found = RecomputeAll().choose(problem)
    assert sorted(found) == sorted(problem.candidates)
    assert set(found.values()) == {(first_backward(problem.training),)}


def test_the_stock_graph_stays() -> None:
    problem = problem_of_graph(*unrolled(2), max_bytes=0)
    assert RecomputeNone().choose(problem) == {}
    assert problem.value(RecomputeNone().choose(problem)).seconds == 0


pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPES = {"data": (32, 64), "label": (32, 64)}


def network() -> mx.sym.Symbol:
    with mx.name.NameManager():
        hidden = mx.sym.var("data")
        for _ in range(4):
            hidden = mx.sym.Activation(mx.sym.FullyConnected(hidden, num_hidden=64), act_type="tanh")
            hidden = hidden * 2 + 1
        return mx.sym.LinearRegressionOutput(hidden, mx.sym.var("label"))


def everything(problem: Problem) -> RecomputeSchedule:
    """Recomputes every candidate."""
    return problem.splits(problem.candidates)


def test_schedule_of_a_function_is_planned() -> None:
    policies = (everything, "all")
    plan, other = (echo.plan(network(), policy=each, fuse=False, max_overhead=None, **SHAPES) for each in policies)
    assert plan.recomputed_nodes == other.recomputed_nodes > 0
    assert plan.marks == other.marks
    assert plan.policy == f"{__name__}.everything"
    assert echo.Plan.from_json(plan.to_json()) == plan


def test_functions_are_told_apart_and_remembered() -> None:
    calls = []

    def counted(problem: Problem) -> RecomputeSchedule:
        calls.append(problem)
        return {}

    first = echo.plan(network(), policy=counted, fuse=False, max_overhead=None, **SHAPES)
    count = len(calls)
    assert echo.plan(network(), policy=counted, fuse=False, max_overhead=None, **SHAPES) == first
    assert len(calls) == count > 0
    assert (
        echo.plan(network(), policy=everything, fuse=False, max_overhead=None, **SHAPES).recomputed_nodes
        > first.recomputed_nodes
        == 0
    )


def test_plan_of_a_function_is_not_written_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(plan_cache, "save", lambda key, found: saved.append(key))
    symbol = mx.sym.Group([network(), mx.sym.BlockGrad(mx.sym.var("data"))])
    echo.plan(symbol, policy=everything, fuse=False, max_overhead=None, **SHAPES)
    assert saved == []
    echo.plan(symbol, fuse=False, max_overhead=None, **SHAPES)
    assert len(saved) == 1


def test_training_with_a_function_has_the_same_bits() -> None:
    symbol, results = network(), []
    optimized = echo.optimize(symbol, policy=everything, exact=True, max_overhead=None)
    for each in (symbol, optimized):
        executor = each.simple_bind(mx.cpu(), **SHAPES)
        for number, array in enumerate(executor.arg_arrays):
            array[:] = np.random.RandomState(number).normal(0, 0.1, array.shape)
        executor.forward(is_train=True)
        executor.backward()
        results.append([array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays) if array is not None])
    assert optimized.plans[-1].recomputed_nodes > 0
    assert all(np.array_equal(one, other) for one, other in zip(*results))


@dataclasses.dataclass
class Unhashable:
    """A policy without a hash, and with a text that it cannot give."""

    count: int

    def __call__(self, problem: Problem) -> RecomputeSchedule:
        return problem.splits(sorted(problem.candidates)[: self.count])

    def __repr__(self) -> str:
        raise ValueError("no text")


def test_a_function_needs_no_hash_and_no_text() -> None:
    policies = [Unhashable(100), Unhashable(0), Unhashable(100)]
    plans = [echo.plan(network(), policy=each, fuse=False, max_overhead=None, **SHAPES) for each in policies]
    assert plans[0] == plans[2]
    assert plans[0].marks != plans[1].marks


def first_candidate(positions: Callable[[Problem, int], Any]) -> Callable[[Problem], Any]:
    def policy(problem: Problem) -> Mapping[int, Any]:
        node = min(problem.candidates)
        return {node: positions(problem, node)}

    return policy


WRONG = {
    "no mapping": (lambda problem: [1, 2], r"expected a mapping from nodes to positions, got \[1, 2\]"),
    "no candidate": (lambda problem: {10**6: (5,)}, "1000000 is no candidate for recomputation"),
    "a name": (lambda problem: {"fc": (5,)}, "'fc' is no candidate for recomputation"),
    "no whole number": (lambda problem: {float(min(problem.candidates)): (5,)}, "is no candidate for recomputation"),
    "no position": (first_candidate(lambda problem, node: ()), "expected positions of backward nodes"),
    "no number": (first_candidate(lambda problem, node: ("x",)), "expected positions, got"),
    "a forward node": (first_candidate(lambda problem, node: (node,)), "expected positions of backward nodes"),
    "after the end": (first_candidate(lambda problem, node: (10**6,)), "expected positions of backward nodes"),
    "descending": (
        first_candidate(lambda problem, node: (len(problem.training.nodes) - 1, len(problem.training.nodes) - 2)),
        "expected positions of backward nodes, ascending",
    ),
}


def raises(error: BaseException) -> Callable[[Problem], Any]:
    def policy(problem: Problem) -> Any:
        raise error

    return policy


def without_problem() -> RecomputeSchedule:
    return {}


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (raises(ValueError("boom\nsecond line")), "raises.<locals>.policy: ValueError: boom second line$"),
        (raises(TimeoutError("20 s")), "raises.<locals>.policy: TimeoutError: 20 s$"),
        (
            without_problem,
            r"without_problem: TypeError: without_problem\(\) takes 0 positional arguments but 1 was given$",
        ),
        (lambda problem: problem.value({10**6: (0,)}), "<lambda>: KeyError: 1000000$"),
    ],
)
def test_function_that_raises_is_named_with_the_error(policy: Callable[..., Any], error: str) -> None:
    for plans in (
        lambda: echo.plan(network(), policy=policy, **SHAPES),
        lambda: echo.optimize(network(), policy=policy).simple_bind(mx.cpu(), **SHAPES),
    ):
        with pytest.raises(echo.OptionError, match=f"^policy {__name__}.{error}"):
            plans()


def test_interrupt_in_a_function_ends_the_planning() -> None:
    with pytest.raises(KeyboardInterrupt):
        echo.plan(network(), policy=raises(KeyboardInterrupt()), **SHAPES)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_schedule_raises_and_nothing_is_bound(name: str) -> None:
    policy, error = WRONG[name]
    with pytest.raises(echo.OptionError, match=f"policy .*: .*{error}"):
        echo.optimize(network(), policy=policy).simple_bind(mx.cpu(), **SHAPES)
