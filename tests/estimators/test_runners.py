"""Graphs that a CachedOp runs: native and reference planner agree, and MXNet's CachedOp allocates what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from echo import native
from echo.errors import GraphError
from echo.estimators.mxnet_storage import plan_storage
from echo.estimators.storage_planner import ReferencePlanner, StoragePlanner
from echo.frontend.derived_graphs import as_cached
from echo.frontend.symbols import symbol_of
from echo.ir.graph import Entry, Graph
from echo.ir.schedule import with_clones
from echo.ir.training_graph import MemoryPool, Runner, StorageStrategy, TrainingGraph
from echo.plans.decisions import mark
from echo.runtime.cached_op import StockCachedOp
from echo.system.threads import own_binds
from tests.support.cases import ALL_CASES, Case, any_case, case_of, recomputable
from tests.support.made_graphs import Builder
from tests.support.planning import choice_of

RUNNERS = (Runner.STATIC, Runner.DYNAMIC)
RANGES = (0, 1, 2, 16)


def as_run(case: Case, runner: str) -> TrainingGraph:
    return as_cached(case.training, runner, 16)


@pytest.mark.every(5)
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", ALL_CASES)
def test_native_and_reference_agree(name: str, runner: str) -> None:
    case = any_case(name)
    training = as_run(case, runner)
    seconds = [0.0] * len(training.nodes)
    fast, slow = StoragePlanner(training, seconds), ReferencePlanner(training, seconds)
    for seed, share in enumerate((0.0, 0.3, 1.0)):
        choice = choice_of(training, case.draw(seed, share))
        assert fast.evaluate(choice, RANGES).totals == slow.evaluate(choice, RANGES).totals
    assert slow.evaluate(choice_of(training, ()), (16,)).totals == (training.planned_bytes,)


@pytest.mark.every(5)
@pytest.mark.parametrize(
    "pool", [MemoryPool(4096, 2 << 20, False, 3), MemoryPool(64, 1 << 10, True), MemoryPool(5000, 1000, False, 1)]
)
@pytest.mark.parametrize("name", ALL_CASES)
def test_native_and_reference_agree_on_what_a_pool_holds(name: str, pool: MemoryPool) -> None:
    case = any_case(name)
    training = as_cached(case.training, Runner.DYNAMIC, 16, pool)
    seconds = [0.0] * len(training.nodes)
    fast, slow = StoragePlanner(training, seconds), ReferencePlanner(training, seconds)
    for seed, share in enumerate((0.0, 0.3, 1.0)):
        choice = choice_of(training, case.draw(seed, share))
        found = fast.evaluate(choice, (*RANGES, StorageStrategy.PEAK)).totals
        assert found == slow.evaluate(choice, (*RANGES, StorageStrategy.PEAK)).totals
        assert min(found) == found[-1], "a pool never holds less than what is alive"
    assert slow.evaluate(choice_of(training, ()), (16,)).totals == (training.planned_bytes,)


@pytest.mark.parametrize("name", ALL_CASES)
def test_a_limit_ends_static_planning_early_and_keeps_dynamic_exact(name: str) -> None:
    for runner in RUNNERS:
        training = as_run(any_case(name), runner)
        planner = StoragePlanner(training, [0.0] * len(training.nodes))
        exact = planner.evaluate(choice_of(training, ()), (16,)).bytes
        assert planner.evaluate(choice_of(training, ()), (16,), exact).bytes == exact
        assert planner.evaluate(choice_of(training, ()), (16,), exact // 2).bytes > exact // 2


def test_dynamic_memory_is_what_is_alive_at_once() -> None:
    """Four maps of 4, 8, 12 and 16 bytes; the first is read at the end, the others one after the other."""
    b = Builder()
    x = b.variable("x", 1)
    first = b.forward("relu", "first", (1,), x)
    second = b.forward("relu", "second", (2,), first)
    third = b.forward("relu", "third", (3,), second)
    loss = b.forward("relu", "loss", (4,), third)
    head = b.backward("_backward_relu", "head", (4,), loss)
    last = b.backward("_backward_relu", "last", (1,), head, first)
    graph = b.graph([loss, last])
    assert plan_storage(replace(graph, runner=Runner.STATIC), 0).total == 4 + 8 + 12 + 16 + 16 + 4
    # while `last` runs: first, loss (an output), head, last
    assert plan_storage(replace(graph, runner=Runner.DYNAMIC), 0).total == 4 + 16 + 16 + 4


def test_a_pool_hands_blocks_out_again_for_their_own_size_alone() -> None:
    """Maps of 4, 8 and 4 bytes, of which the next reads each; two of them are alive at once."""
    b = Builder()
    first = b.forward("relu", "first", (1,), b.variable("x", 1))
    second = b.forward("relu", "second", (2,), first)
    third = b.forward("relu", "third", (1,), second)
    last = b.forward("relu", "last", (2,), third)
    graph = replace(b.graph([last]), runner=Runner.DYNAMIC)
    assert plan_storage(graph, 0).total == 12
    fine, coarse = MemoryPool(4, 64, powers=False), MemoryPool(8, 64, powers=True)
    assert plan_storage(replace(graph, pool=fine), 0).total == 12, "third and last get the blocks of first and second"
    assert plan_storage(replace(graph, pool=coarse), 0).total == 16, "blocks of 8 bytes"
    late = MemoryPool(4, 64, powers=False, reuse_delay=1)
    assert plan_storage(replace(graph, pool=late), 0).total == 2 * 4 + 2 * 8, "each comes back when the next is there"
    three = b.forward("relu", "three", (3,), last)
    graph = replace(b.graph([three]), runner=Runner.DYNAMIC)
    assert plan_storage(graph, 0).total == 20
    assert plan_storage(replace(graph, pool=fine), 0).total == 24, "the 4 bytes stay in the pool, and serve no 12"


def test_backward_nodes_do_not_take_over_forward_memory() -> None:
    case = any_case("lm")
    training = as_run(case, Runner.STATIC)
    storage = plan_storage(training, 16)
    chunks: tuple[set[int], set[int]] = set(), set()
    for number, node in training.operators():
        for entry in range(training.first_entry[number], training.first_entry[number + 1]):
            if storage.chunk[entry] >= 0:
                chunks[node.forward].add(storage.chunk[entry])
    assert chunks[0]
    assert chunks[1]
    assert not chunks[0] & chunks[1]


def test_unknown_runners_are_refused() -> None:
    expected = "runner: expected one of executor, static, dynamic, static shape, got 'banana'"
    with pytest.raises(GraphError, match=expected):
        replace(any_case("lm").training, runner="banana")


# MXNet's own CachedOp ------------------------------------------------------------------------------------------


def trained_inputs(case: Case) -> Case:
    """The same symbol with a gradient for every argument, which is what a CachedOp prepares for."""
    shapes = dict(zip(case.symbol.list_arguments(), case.binding.arg_shapes))
    types = dict(zip(case.symbol.list_arguments(), case.binding.arg_types))
    return case_of(case.symbol, shapes, dict.fromkeys(shapes, "write"), types)


def allocated(case: Case, graph: Graph, static: bool) -> tuple[int, int]:
    """Bytes that MXNet plans for the forward and the backward nodes of a CachedOp."""
    symbol = symbol_of(graph)
    with own_binds():
        op = StockCachedOp(symbol, [("static_alloc", static), ("inline_limit", 0)])
    generator = np.random.RandomState(0)
    arrays: dict[str, Any] = {}
    for names, shapes, types in (
        (symbol.list_arguments(), case.binding.arg_shapes, case.binding.arg_types),
        (symbol.list_auxiliary_states(), case.binding.aux_shapes, case.binding.aux_types),
    ):
        for name, shape, kind in zip(names, shapes, types):
            arrays[name] = mx.nd.array(generator.uniform(0.1, 1.0, shape), dtype=kind)
    for name in symbol.list_arguments():
        arrays[name].attach_grad()
    with autograd.record(), native.capture() as forward:
        outputs = op(*(arrays[name] for name in symbol.list_inputs()))
    with native.capture() as backward:
        autograd.backward(outputs if isinstance(outputs, list) else [outputs])
    mx.nd.waitall()
    return forward.graph["touched_bytes"], backward.graph["touched_bytes"]


@pytest.mark.parametrize("name", ["resnet50_v1", "densenet121", "slices", "many readers", "two outputs"])
def test_a_cached_op_allocates_what_was_planned(name: str) -> None:
    case = trained_inputs(any_case(name))
    training = as_run(case, Runner.STATIC)
    assert sum(allocated(case, case.graph, static=True)) == training.planned_bytes
    chosen = [
        entry
        for number, entries in recomputable(training).items()
        if not training.nodes[number].stateful and number % 3
        for entry in entries
    ]
    marks: dict[int, list[int]] = {}
    for entry in chosen:
        original = training.nodes[entry.node].original
        assert original is not None
        marks.setdefault(original, []).append(entry.index)
    for match_range in (None, 1):
        graph = mark(case.graph, marks, hook=True, match_range=match_range)
        predicted = plan_storage(with_clones(training, chosen), match_range or 16).total
        assert sum(allocated(case, graph, static=True)) == predicted
    assert predicted != training.planned_bytes


def test_operators_with_state_are_not_offered_to_a_cached_op() -> None:
    from echo.passes.analysis import FindCandidates
    from echo.passes.request import Request
    from echo.plans.options import Options
    from tests.support.fake_frontend import FakeFramework

    case = any_case("slices")
    request = Request(case.graph, Options(), FakeFramework(case.training))
    parts = next(number for number, node in enumerate(case.training.nodes) if node.name == "parts")
    assert parts in FindCandidates().run(request, case.training).light
    refused = FindCandidates().run(request, as_run(case, Runner.DYNAMIC)).refused
    assert refused[parts] == "SliceChannel keeps state, for which a CachedOp has no room twice"
    assert Entry(parts) not in FindCandidates().run(request, as_run(case, Runner.STATIC)).must_recompute
