"""Usages of training graphs: MXNet's own, with clones, of executors and CachedOps."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.estimators.footprint import FEATURE_MAPS, INPUTS, OPTIMIZER, RECOMPUTED, WEIGHTS, footprint
from echo.estimators.storage_planner import blocks
from echo.ir.schedule import with_clones
from echo.report.make import usage
from echo.report.usage import ALWAYS, GAPS
from tests.conftest import ALL_CASES, any_case


@pytest.mark.parametrize("name", ALL_CASES)
def test_it_is_the_footprint_array_by_array(name: str) -> None:
    training = any_case(name).training
    known = footprint(training, blocks(training), {})
    made = usage(training, training.planned_bytes, (), {})
    operators = [number for number, _ in training.operators()]
    assert made.live == tuple(int(known.live[number]) for number in operators)
    assert made.live_peak == known.peak
    assert {kind: size for kind, size in made.by_kind.items() if kind != GAPS} == known.at_peak
    assert sum(made.by_kind.values()) == training.planned_bytes
    assert made.forward_steps == sum(training.nodes[number].forward for number in operators)


@pytest.mark.parametrize("name", ALL_CASES)
def test_clones_of_a_bound_graph_are_recomputed_maps(name: str) -> None:
    case = any_case(name)
    chosen = case.draw(1, 0.8)
    bound = case.bound(case.rewritten(chosen))
    planned = with_clones(case.training, chosen)
    kinds = [
        sum(tensor.kind == RECOMPUTED for tensor in usage(training, 10**9, (), {}).tensors)
        for training in (bound, planned)
    ]
    assert kinds[0] == kinds[1]
    assert bool(kinds[0]) == bool(chosen)


def test_what_the_executor_is_given() -> None:
    training = any_case("dropout").training
    given = [("data", INPUTS, 640), ("fc0_weight", WEIGHTS, 1920), ("empty", WEIGHTS, 0)]
    made = usage(training, training.planned_bytes, given, {OPTIMIZER: 5, "nothing": 0})
    always = [tensor for tensor in made.tensors if tensor.first == ALWAYS]
    assert [(tensor.name, tensor.kind, tensor.bytes) for tensor in always] == given[:2]
    assert all(tensor.op == "" and tensor.last == len(made.steps) - 1 for tensor in always)
    assert made.beside == {OPTIMIZER: 5}
    assert made.total == training.planned_bytes + 640 + 1920 + 5
    assert made.by_kind[FEATURE_MAPS] == usage(training, training.planned_bytes, (), {}).by_kind[FEATURE_MAPS]


def test_steps_are_operators() -> None:
    training = any_case("slices").training
    made = usage(training, training.planned_bytes, (), {})
    assert list(made.steps) == [node.name for _, node in training.operators()]
    assert mx.sym.var("data").name not in made.steps
