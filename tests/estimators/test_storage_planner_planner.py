"""The planner's figures are MXNet's own: native, plain Python and the real executor agree to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from echo.estimators.mxnet_storage import plan_storage
from echo.estimators.storage_planner import blocks
from echo.frontend.capture import chunk_bytes
from echo.frontend.mirror import MirrorEvaluator, forward_graph
from echo.frontend.mxnet_settings import match_range
from echo.frontend.symbols import symbol_of
from echo.ir.graph import Graph
from echo.ir.schedule import with_clones
from echo.ir.training_graph import Runner
from tests.support.cases import ALL_CASES, MATCH_RANGES, Case, any_case, case_of, model_case
from tests.support.planners import planners
from tests.support.planning import choice_of

SHARES = (0.15, 0.5, 1.0)


# The oracle --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_CASES)
def test_stock_graph_needs_what_mxnet_plans(name: str) -> None:
    case = any_case(name)
    fast, _ = planners(case)
    nothing = choice_of(case.training, ())
    assert fast.evaluate(nothing, (16,)).totals == (case.training.planned_bytes,)
    oracle = tuple(case.mxnet_memory_plan(case.graph, value) for value in MATCH_RANGES)
    assert fast.evaluate(nothing, MATCH_RANGES).totals == oracle
    assert tuple(plan_storage(case.training, value).total for value in MATCH_RANGES) == oracle


@pytest.mark.every(5)
@pytest.mark.parametrize("name", ALL_CASES)
def test_random_choices_need_what_mxnet_plans(name: str) -> None:
    case = any_case(name)
    fast, slow = planners(case)
    for seed, share in enumerate(SHARES):
        entries = case.draw(seed, share)
        choice = choice_of(case.training, entries)
        rewritten = case.rewritten(entries)
        found, expected = fast.evaluate(choice, MATCH_RANGES), slow.evaluate(choice, MATCH_RANGES)
        assert found.totals == expected.totals
        asked = MATCH_RANGES[seed % 2 :: 2]
        assert found.totals[seed % 2 :: 2] == tuple(case.mxnet_memory_plan(rewritten, value) for value in asked)
        assert found.seconds == pytest.approx(expected.seconds, rel=1e-12, abs=0)
        np.testing.assert_array_equal(fast.executed(choice), slow.executed(choice))


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ALL_CASES)
def test_splits_need_what_mxnet_plans(name: str) -> None:
    case = any_case(name)
    fast, slow = planners(case)
    for seed in range(2):
        entries = case.draw(seed, 0.7)
        choice, schedule = choice_of(case.training, entries), case.draw_schedule(seed, entries)
        found, expected = (planner.evaluate(choice, MATCH_RANGES, None, schedule) for planner in (fast, slow))
        assert found.totals == expected.totals
        assert found.totals == tuple(
            case.mxnet_memory_plan(case.rewritten(entries, schedule=schedule), r) for r in MATCH_RANGES
        )
        assert found.seconds == pytest.approx(expected.seconds, rel=1e-12, abs=0)
        np.testing.assert_array_equal(fast.executed(choice, schedule), slow.executed(choice, schedule))


def test_a_choice_changes_the_totals() -> None:
    """So that equal figures above mean something."""
    case = model_case("nmt")
    fast, _ = planners(case)
    totals = {fast.evaluate(choice_of(case.training, case.draw(seed, 0.5)), (16,)).totals for seed in range(10)}
    assert len(totals) > 5
    assert len({fast.evaluate(choice_of(case.training, ()), (value,)).totals for value in MATCH_RANGES}) > 2


UNARY: list[Any] = [
    mx.sym.tanh,
    mx.sym.exp,
    mx.sym.relu,
    mx.sym.square,
    mx.sym.negative,
    mx.sym.identity,
    mx.sym.Flatten,
    lambda x: x * 2.0,
    lambda x: mx.sym.Dropout(x, p=0.5),
    lambda x: mx.sym.LeakyReLU(x, act_type="gelu"),
    lambda x: mx.sym.softmax(x, axis=-1),
    lambda x: mx.sym.Concat(*mx.sym.SliceChannel(x, num_outputs=2), dim=1),
    lambda x: mx.sym.FullyConnected(x, num_hidden=6, no_bias=True),
]
BINARY: list[Any] = [
    mx.sym.elemwise_add,
    mx.sym.elemwise_mul,
    mx.sym.elemwise_sub,
    lambda x, y: mx.sym.broadcast_mul(x, mx.sym.sum(y, axis=1, keepdims=True)),
    lambda x, y: mx.sym.where(x > 0, x, y),
]
steps = st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 40), st.integers(0, 40))


def random_symbol(plan: list[tuple[int, int, int]], heads: int, distinct: bool = True) -> mx.sym.Symbol:
    """One operator a step, on maps made before (numbers count back from the last one).

    MXNet merges operators that compute the same, unless they are made ``distinct``.
    """
    with mx.name.NameManager():
        first, other = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="first"), mx.sym.var("other")
        maps = [first, other]
        for step, (op, left, right) in enumerate(plan):
            x, y = maps[-1 - left % len(maps)], maps[-1 - right % len(maps)]
            with mx.AttrScope(**({"__step__": str(step)} if distinct else {})):
                maps.append(UNARY[op](x) if op < len(UNARY) else BINARY[op - len(UNARY)](x, y))
        return mx.sym.MakeLoss(mx.sym.add_n(*(mx.sym.sum(item) for item in [first * other, *maps[-heads:]])))


def assert_planners_agree(symbol: mx.sym.Symbol, seed: int) -> None:
    case = case_of(symbol, {"data": (4, 5), "other": (4, 6)}, grad_req="write")
    fast, slow = planners(case)
    entries = case.draw(seed, 0.7)
    choice = choice_of(case.training, entries)
    found = fast.evaluate(choice, MATCH_RANGES)
    assert found == slow.evaluate(choice, MATCH_RANGES)
    rewritten = case.rewritten(entries)
    assert found.totals[1::2] == tuple(case.mxnet_memory_plan(rewritten, value) for value in MATCH_RANGES[1::2])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(plan=st.lists(steps, min_size=1, max_size=25), heads=st.integers(1, 3), seed=st.integers(0, 9))
def test_random_graphs_need_what_mxnet_plans(plan: list[tuple[int, int, int]], heads: int, seed: int) -> None:
    assert_planners_agree(random_symbol(plan, heads), seed)


@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
@given(plan=st.lists(steps, min_size=1, max_size=12), heads=st.integers(1, 3), seed=st.integers(0, 9))
def test_operators_that_mxnet_merges(plan: list[tuple[int, int, int]], heads: int, seed: int) -> None:
    assert_planners_agree(random_symbol([*plan, *plan[:2]], heads, distinct=False), seed)


@pytest.mark.every(5)
@pytest.mark.parametrize("name", ALL_CASES)
@pytest.mark.parametrize("share", [0.0, 0.6])
@pytest.mark.parametrize("runner", tuple(Runner))
def test_blocks_are_those_of_the_reference_and_the_same_under_every_range(name: str, share: float, runner: str) -> None:
    training = replace(with_clones(any_case(name).training, any_case(name).draw(6, share)), runner=runner)
    found, expected = blocks(training), plan_storage(training, 0)
    assert (found.chunk, found.inplace) == (expected.chunk, expected.inplace)
    assert any(position >= 0 for position in found.inplace) or name == "two outputs"
    assert all(plan_storage(training, value).inplace == found.inplace for value in (1, 16))


# Without the hook --------------------------------------------------------------------------------------------


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ALL_CASES)
def test_mirrored_choices_need_what_mxnet_plans(name: str) -> None:
    case = any_case(name)
    training = forward_graph(case.graph, case.binding, mx.cpu())
    forward = Case(case.symbol, case.graph, case.binding, training)
    evaluator = MirrorEvaluator(case.graph, case.binding, mx.cpu(), training, [0.5] * len(training.nodes))
    assert evaluator.evaluate(choice_of(training, ()), (16,)).totals == (printed(case, case.graph, 16),)
    for seed, share in enumerate(SHARES):
        entries = forward.draw(seed, share, hook=False)
        marked = forward.rewritten(entries, hook=False)
        choice = choice_of(training, entries)
        value = evaluator.evaluate(choice, (2, 16))
        assert value.totals == (printed(case, marked, 2), printed(case, marked, 16))
        nodes = {entry.node for entry in entries}
        assert value.seconds == 0.5 * len(nodes)
        assert set(evaluator.executed(choice).nonzero()[0]) == nodes


def printed(case: Case, graph: Graph, value: int) -> int:
    """Bytes up to the megabyte above what MXNet prints, which counts chunks that it never allocates, too."""
    with match_range(value):
        return ((sum(chunk_bytes(symbol_of(graph), case.binding, mx.cpu())) >> 20) + 1) << 20


@pytest.mark.parametrize("name", ALL_CASES)
def test_forward_graph_is_the_forward_part_of_the_training_graph(name: str) -> None:
    case = any_case(name)
    alone = forward_graph(case.graph, case.binding, mx.cpu())
    assert [(node.op, node.name, node.original) for node in alone.nodes] == [
        (node.op, node.name, number) for number, node in enumerate(case.graph.nodes)
    ]
    types = {node.original: node.outputs for node in case.training.nodes if node.forward and node.original is not None}
    assert {node.original: node.outputs for node in alone.nodes if node.original in types} == types
    assert alone.planned_bytes == printed(case, case.graph, 16)
