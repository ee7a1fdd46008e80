"""Live bytes with the native library and without."""

from __future__ import annotations

import random

import pytest

from echo.errors import NativeError
from echo.estimators import live
from echo.estimators.live import LiveEvaluator
from echo.policies.data_problem import problem_of_graph
from tests.data_graphs import chain, random_graph


def without_library(*_: object) -> None:
    raise NativeError("there is none")


def test_python_says_what_the_native_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        generator = random.Random(seed)
        graph = random_graph(seed, 12)
        native = problem_of_graph(*graph)
        with monkeypatch.context() as patch:
            patch.setattr(live, "Scheduler", without_library)
            plain = LiveEvaluator(*graph)
        backward = [number for number, node in graph.training.operators() if not node.forward]
        for _ in range(5):
            chosen = generator.sample(sorted(native.candidates), 6)
            splits = {number: tuple(sorted(generator.sample(backward, 2))) for number in chosen[:3]}
            choice = native.choice(chosen)
            for given in (None, splits):
                value, same = (e.evaluate(choice, (1, 2), None, given) for e in (native.evaluator, plain))
                assert value.totals == same.totals, f"seed {seed}"
                assert value.seconds == pytest.approx(same.seconds), f"seed {seed}"
                assert (native.evaluator.executed(choice, given) == plain.executed(choice, given)).all()


def test_splits_go_before_the_choice() -> None:
    """Nodes 8 and 9 of ten run again: once for all, or node 9 from its own gradient on."""
    problem = problem_of_graph(*chain(10))
    choice = problem.choice([8, 9])
    assert problem.evaluator.evaluate(choice, (1,)).seconds == 2
    assert problem.evaluator.executed(choice, {8: (12, 13)})[[8, 9]].tolist() == [1, 1]
    assert problem.evaluator.executed(choice, {8: (11, 12)})[[8, 9]].tolist() == [2, 1]
