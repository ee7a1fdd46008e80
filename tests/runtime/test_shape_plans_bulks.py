"""What the engine frees while a block without ``static_alloc`` runs by a plan: as much as the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import pytest
from mxnet import autograd, gluon

import echo
from echo.instrument.recording import StorageCounter
from echo.ir.training_graph import Runner
from echo.plans.plan import Plan
from echo.runtime import cached_op, shape_plans
from tests.support.block_scenarios import plans_of

SHAPE = (4, 3, 128, 128)


def block() -> gluon.HybridBlock:
    """The first two stages of a ResNet, whose largest feature maps are at its beginning."""
    net = gluon.model_zoo.vision.resnet18_v1().features[:6]
    net.initialize()
    net.infer_shape(mx.nd.ones(SHAPE))
    return net


def most_alive() -> tuple[int, Plan]:
    """The most bytes of arrays alive in a step, and the plan; temporary spaces of MXNet grow in the first steps."""
    net = block()
    net.hybridize()
    echo.optimize(net, exact=True, max_overhead=None)
    for _ in range(4):
        counter = StorageCounter()
        try:
            with autograd.record():
                loss = net(mx.nd.ones(SHAPE)).sum()
            loss.backward()
            mx.nd.waitall()
            most = counter.most()
        finally:
            counter.close()
    (plan,) = plans_of(net)
    return most, plan


def test_no_more_is_alive_than_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    most, plan = most_alive()
    around = 4 * (4 * 3 * 128 * 128 + 2 * 4 * 64 * 32 * 32)  # bytes of input, output and its gradient
    assert plan.after.chosen < plan.before.planned * 0.6
    assert plan.after.chosen <= most <= plan.after.chosen + 0.5 * around
    monkeypatch.setenv("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", "15")  # as by default
    assert most_alive()[0] > plan.after.chosen + 1.2 * around


@pytest.fixture(scope="module")
def planned() -> Plan:
    return echo.plan(block(), data=SHAPE, exact=True)


def chosen_bulk(plan: Plan, seconds: float = 1.0, **key: Any) -> int:
    plan = replace(plan, key=replace(plan.key, **key), step_seconds=seconds, overhead_seconds=0.0)
    graph = echo.frontend.symbols.graph_of(mx.sym.tanh(mx.sym.var("x")))
    return shape_plans.chosen(plan, graph, graph, ["x"]).bulk


def test_longer_bulks_in_short_steps(planned: Plan) -> None:
    a_start = 2 * shape_plans._START_SECONDS / shape_plans._MOST_STARTS
    assert [chosen_bulk(planned, share * a_start) for share in (1.1, 0.9, 0.3, 0.2, 0.0)] == [1, 4, 4, 0, 0]


def test_only_where_memory_comes_and_goes(planned: Plan) -> None:
    assert [chosen_bulk(planned, runner=runner) for runner in Runner] == [
        int(runner == Runner.DYNAMIC) for runner in Runner
    ]
    assert chosen_bulk(replace(planned, device="gpu")) == 0


def test_the_users_bulks_stay(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    stock = cached_op.StockCachedOp
    monkeypatch.setattr(cached_op, "UnfusedCachedOp", lambda *given: made.append(dict(given[1])) or stock(*given))
    for flags in ({}, {"backward_bulk_size": 9}):
        net = echo.optimize(block(), exact=True, max_overhead=None)
        net.hybridize(**flags)
        with autograd.record():
            net(mx.nd.ones(SHAPE))
    sizes = [{name: size for name, size in flags.items() if "bulk" in name} for flags in made]
    assert sizes[0] in ({"forward_bulk_size": bulk, "backward_bulk_size": bulk} for bulk in shape_plans._BULKS)
    assert sizes[1] == {**sizes[0], "backward_bulk_size": 9}
    monkeypatch.setenv("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", "7")
    assert chosen_bulk(planned) == 0
