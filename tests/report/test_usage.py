"""Tests of `echo.report.usage`: usage; make."""

from __future__ import annotations

import dataclasses
import json
import random

import mxnet as mx
import pytest

from echo.errors import GraphError, OptionError
from echo.estimators.footprint import FEATURE_MAPS, INPUTS, OPTIMIZER, RECOMPUTED, WEIGHTS, footprint
from echo.estimators.storage_planner import blocks
from echo.ir.schedule import with_clones
from echo.report.usage import (
    ALWAYS,
    BLOCKS,
    DEVICE,
    GAPS,
    GRAPH,
    PROCESS,
    STORAGE,
    UNWRITTEN,
    Tensor,
    Usage,
    from_columns,
    layer_by,
    to_columns,
    usage,
)
from tests.support.cases import ALL_CASES, any_case

STEPS = ("fc", "tanh", "loss", "tanh_backward", "fc_backward")
TENSORS = (
    Tensor("data", "", "data", "inputs", 40, ALWAYS, 4),
    Tensor("encoder_l0_fc", "FullyConnected", "encoder_l0", "feature maps", 100, 0, 3),
    Tensor("encoder_l0_tanh", "tanh", "encoder_l0", "feature maps", 60, 1, 4),
    Tensor("loss", "MakeLoss", "loss", "temporaries", 7, 2, 2),
    Tensor("encoder_l0_tanh_backward", "_backward_tanh", "encoder_l0", "map gradients", 50, 3, 4),
)
USAGE = Usage(230, {"optimizer states": 8}, STEPS, 3, TENSORS)


def test_live_bytes_peak_at_their_step() -> None:
    assert USAGE.live == (100, 160, 167, 210, 110)
    assert (USAGE.peak_step, USAGE.live_peak) == (3, 210)
    assert [tensor.name for tensor in USAGE.at_peak] == [
        "encoder_l0_fc", "encoder_l0_tanh", "encoder_l0_tanh_backward", "data",
    ]  # fmt: skip


def test_kinds_add_up_to_all_that_is_held() -> None:
    assert USAGE.total == 230 + 40 + 8
    assert USAGE.by_kind == {
        "feature maps": 160, "map gradients": 50, "inputs": 40, GAPS: 20, "optimizer states": 8,
    }  # fmt: skip
    assert sum(USAGE.by_kind.values()) == USAGE.total


def test_unaccounted_bytes_exclude_all_that_is_known() -> None:
    assert USAGE.unaccounted is None
    seen = {PROCESS: 400, STORAGE: 270, BLOCKS: 30, GRAPH: 50}
    usage = dataclasses.replace(USAGE, beside={})
    assert dataclasses.replace(usage, measured=seen).unaccounted == 400 - 270 - 30 - 50
    assert dataclasses.replace(usage, measured={PROCESS: 400}).unaccounted == 400 - usage.total
    assert dataclasses.replace(usage, measured={**seen, DEVICE: 300}).unaccounted == 300 - usage.total
    states = dataclasses.replace(usage, beside={OPTIMIZER: 77}, measured={PROCESS: 400})
    assert states.unaccounted == 400 - usage.total, "the step that ran had no optimizer"
    less = dataclasses.replace(usage, measured={**seen, UNWRITTEN: 15})
    assert less.unaccounted == 400 - (270 + 30 + 50 - 15)


@pytest.mark.parametrize("seed", range(20))
def test_live_bytes_are_those_of_the_arrays_alive(seed: int) -> None:
    draw = random.Random(seed)
    steps = draw.randint(1, 12)
    spans = [sorted(draw.choices(range(steps), k=2)) for _ in range(draw.randint(0, 20))]
    tensors = [Tensor("x", "op", "x", "feature maps", draw.randint(0, 9), *span) for span in spans]
    usage = Usage(10**6, {}, ("node",) * steps, steps, tuple(tensors))
    for step, alive in enumerate(usage.live):
        assert alive == sum(tensor.bytes for tensor in tensors if tensor.first <= step <= tensor.last)
    assert usage.live_peak == max(usage.live)


def test_bytes_are_grouped_by_layer_or_pattern() -> None:
    assert USAGE.by_layer() == {
        ("encoder_l0", "feature maps"): 160, ("encoder_l0", "map gradients"): 50, ("data", "inputs"): 40,
    }  # fmt: skip
    assert USAGE.by_layer(layer_by("encoder")) == {
        ("encoder", "feature maps"): 160, ("encoder", "map gradients"): 50, ("others", "inputs"): 40,
    }  # fmt: skip
    assert set(USAGE.by_layer(layer_by("_(fc|tanh)"))) == {
        ("fc", "feature maps"), ("tanh", "feature maps"), ("tanh", "map gradients"), ("others", "inputs"),
    }  # fmt: skip
    assert set(USAGE.by_layer(layer_by("data|(loss)"))) >= {("others", "inputs")}, "a group that took no part"


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(OptionError, match=r"expected a regular expression .* got '\(': missing \)"):
        layer_by("(")


@pytest.mark.parametrize(
    "change", [{"first": 5}, {"first": -2}, {"last": 5}, {"first": 3, "last": 2}, {"bytes": -1}], ids=str
)
def test_arrays_outside_of_the_step_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(GraphError, match="encoder_l0_fc: expected bytes and steps of 5"):
        Usage(230, {}, STEPS, 3, (dataclasses.replace(TENSORS[1], **change),))


def test_a_graph_without_operators() -> None:
    usage = Usage(0, {}, (), 0, (Tensor("data", "", "data", "inputs", 40, ALWAYS, 0),))
    assert (usage.live, usage.live_peak, usage.total, dict(usage.by_kind)) == ((), 0, 40, {"inputs": 40})


def test_columns_and_back() -> None:
    columns = json.loads(json.dumps(to_columns(TENSORS)))
    assert columns["texts"].count("feature maps") == 1
    assert from_columns(columns) == TENSORS
    assert from_columns(to_columns(())) == ()


@pytest.mark.parametrize(
    ("column", "value"),
    [("bytes", [1]), ("bytes", [1.5] * 5), ("first", [True] * 5), ("op", [99] * 5), ("kind", [-1] * 5),
     ("name", [3] * 5), ("texts", [1] * 20), ("last", None)],
)  # fmt: skip
def test_damaged_columns_are_refused(column: str, value: object) -> None:
    columns = {**to_columns(TENSORS), column: value}
    with pytest.raises((KeyError, IndexError, TypeError, ValueError)):
        from_columns(columns)  # type: ignore[arg-type]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ALL_CASES)
def test_usage_equals_the_footprint(name: str) -> None:
    training = any_case(name).training
    known = footprint(training, blocks(training))
    made = usage(training, training.planned_bytes, (), {})
    operators = [number for number, _ in training.operators()]
    assert made.live == tuple(int(known.live[number]) for number in operators)
    assert made.live_peak == known.peak
    assert {kind: size for kind, size in made.by_kind.items() if kind != GAPS} == known.at_peak
    assert sum(made.by_kind.values()) == training.planned_bytes
    assert made.forward_steps == sum(training.nodes[number].forward for number in operators)


@pytest.mark.every(3)
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


def test_given_arrays_live_through_all_steps() -> None:
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
