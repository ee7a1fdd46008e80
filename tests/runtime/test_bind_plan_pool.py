"""Executors that share a pool of memory: MXNet's rule, and plans that do not make the pool grow."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import pytest

import echo
from benchmarks.buckets import chunks
from benchmarks.models import SMALL, nmt_symbol
from echo import native, pipeline
from echo.frontend import capture, framework
from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import graph_of, infer_binding, types_of
from echo.passes.request import Request
from echo.planning.planner import Planner
from echo.plans.options import Options
from echo.runtime import bind_plan
from echo.runtime.applied import BoundLeader, Pool
from echo.runtime.bind_plan import pool_of

HIDDEN, WORDS, BATCH = 64, 60, 64
LENGTHS = (16, 14, 9)


@pytest.mark.parametrize(
    ("pool", "wanted", "growth"),
    [
        ([], [8, 4], 12),
        ([8, 4], [4, 8], 0),
        ([8, 8], [4, 4, 4], 4),
        ([8], [4, 8], 4),  # the largest is served first
        ([16, 4], [8, 4], 0),  # by the smallest that is enough
        ([4], [5], 8),  # whole floats
    ],
)
def test_mxnets_rule(pool: Sequence[int], wanted: Sequence[int], growth: int) -> None:
    owner = Pool(pool)
    assert owner.growth(wanted) == growth
    shared = owner.share(wanted)
    assert sum(owner.chunks) == sum(Pool(pool).chunks) + growth
    assert sorted(shared.chunks) >= sorted(wanted)
    assert owner.growth(wanted) == 0


def pool_of_buckets(**options: Any) -> tuple[int, int]:
    """Bytes of the shared pool when all lengths are bound, and of the first one alone."""
    pool = Pool([])
    with echo.enable(**options):
        module = mx.mod.BucketingModule(
            lambda length: (nmt_symbol(length, HIDDEN, WORDS), ("source", "target"), ("softmax_label",)), LENGTHS[0]
        )
        for length in LENGTHS:
            shape = (BATCH, length)
            data, label = [("source", shape), ("target", shape)], [("softmax_label", shape)]
            with native.capture() as caught:
                if length == LENGTHS[0]:
                    module.bind(data, label)
                    module.init_params()
                else:
                    module.switch_bucket(length, data, label)
            pool.share(chunks(caught.graph))
            if length == LENGTHS[0]:
                first = sum(pool.chunks)
    known = pool_of(module._buckets[LENGTHS[0]]._exec_group.execs[0], mx.cpu())
    assert known is not None
    assert sorted(known.chunks) == sorted(pool.chunks)
    return sum(pool.chunks), first


@pytest.mark.every(3)
@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("fuse", [False, True])
def test_lengths_fit_into_the_pool_of_the_longest(monkeypatch: pytest.MonkeyPatch, fuse: bool) -> None:
    together, first = pool_of_buckets(max_overhead=None, fuse=fuse)
    monkeypatch.setattr(bind_plan, "leader_of", lambda _: None)
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    apart, _ = pool_of_buckets(max_overhead=None, fuse=fuse)
    assert first <= together <= apart
    assert together < apart or fuse, "apart, lengths recompute other nodes; of fused graphs too few are left to differ"
    assert together < 1.2 * first, "what follows is chosen by roles, the first node by node"


@pytest.mark.usefixtures("cheap_planning")
def test_following_plans_are_found_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pool_of_buckets(max_overhead=None)
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr(pipeline, "plan", None)
    binds = counted_binds(monkeypatch)
    assert pool_of_buckets(max_overhead=None) == expected
    assert not binds, "a second start needs neither a training graph nor sizes of chunks"


def counted_binds(monkeypatch: pytest.MonkeyPatch) -> list[mx.sym.Symbol]:
    """The symbols that are bound without memory from now on."""
    full, binds = capture.bind_without_memory, []

    def bound(symbol: mx.sym.Symbol, *more: Any) -> mx.executor.Executor:
        binds.append(symbol)
        return full(symbol, *more)

    monkeypatch.setattr(capture, "bind_without_memory", bound)
    return binds


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_planning", "free_workspaces")
@pytest.mark.parametrize("fuse", [False, True])
def test_a_first_start_asks_mxnet_no_question_twice(monkeypatch: pytest.MonkeyPatch, fuse: bool) -> None:
    plans: list[Any] = []
    full = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda request: (plans.append(request), full(request))[1])
    pool_of_buckets(max_overhead=None, fuse=fuse)  # also the hook's check of itself
    assert len(plans) > len(LENGTHS), "a length is followed first, and searched where the pool grows"
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: None)
    plans.clear()
    binds = counted_binds(monkeypatch)
    typed: list[Any] = []
    monkeypatch.setattr(framework, "types_of", lambda *asked: (typed.append(asked), types_of(*asked))[1])
    pool_of_buckets(max_overhead=None, fuse=fuse)
    # each graph as it is, each plan as it is confirmed; the user's, where the graph that is planned has fused operators
    assert len(binds) == (2 if fuse else 1) * len(LENGTHS) + len(plans)
    whole = [graph for graph, *_ in typed if any(node.op == "SoftmaxOutput" for node in graph.nodes)]
    assert len(whole) == (len(LENGTHS) if fuse else 0)


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize(("name", "fuse"), [("nmt", True), ("resnet50_v1", True), ("resnet50_v1", False)])
def test_the_search_and_the_marks_of_its_plan_give_the_same_warm_start(name: str, fuse: bool) -> None:
    model, options = SMALL[name](), Options(fuse=fuse)
    graph = graph_of(model.symbol)
    binding = infer_binding(model.symbol, model.shapes, None, model.grad_req())
    made = pipeline.plan(Request(graph, options, MxnetFramework(graph, binding, mx.cpu()), details=False))
    assert made.graph != graph
    assert (made.base != graph) == bool(made.plan.fused) == fuse
    assert BoundLeader(made.base, made.graph, binding, mx.cpu()).warm_start(options) == made.warm_start.by_roles()
