"""The accounting of two graphs in the benchmark of frontiers is the planner's, by another way."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from benchmarks.torch_frontier import divisions, estimator_of, evaluated, torch_row  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch import compat  # noqa: E402
from echo.torch.partition import partitioned  # noqa: E402
from echo.torch.planner import plan_graph  # noqa: E402
from tests.support.torch_models import activation_budget, built, traced  # noqa: E402


@pytest.mark.parametrize("name", ["gpt", "translation", "resnet"])
def test_peaks_of_graphs_are_those_of_the_plan(name: str) -> None:
    model, inputs = built(name)
    graph = traced(model, *inputs)
    joint = graph.joint
    seconds = tuple(0.0 if node.is_variable else 1.0 for node in joint.training.nodes)
    stock = compat.default_partition(compat.copied(graph.module), graph.inputs, **graph.options)
    count = graph.options["num_fwd_outputs"]
    # torch orders what needs no tangent in another way
    assert evaluated(stock, count, {})[0] == pytest.approx(joint.training.planned_bytes, rel=0.05)
    plan = plan_graph(joint, seconds, memory_budget=0.7, deadline=Deadline.after(60))
    pair = partitioned(graph.module, joint, plan.schedule, graph.inputs, **graph.options)
    peak, took = evaluated(pair, count, {node.name: 1.0 for node in joint.order})
    assert peak == plan.peak_bytes < joint.training.planned_bytes
    assert took > 0


def test_torchs_budgets_have_rows_with_both_estimators() -> None:
    model, inputs = built("gpt")
    graph = traced(model, *inputs)
    seconds = {node.name: 1e-5 for node in graph.joint.order}
    own = list(divisions(graph, "flops", {}))
    measured = list(divisions(graph, "measured", estimator_of(seconds) or {}))
    rows = [torch_row(division, graph, seconds, sum(seconds.values())) for division in own + measured]
    assert {row["by"] for row in rows} == {"torch, flops", "torch, measured"}
    assert len(rows) > 8
    assert min(row["peak_bytes"] for row in rows) < max(row["peak_bytes"] for row in rows)


@pytest.mark.parametrize("name", ["gpt", "translation", "resnet"])
def test_plan_is_no_slower_than_torchs_partition_of_the_same_peak(name: str) -> None:
    model, inputs = built(name)
    graph = traced(model, *inputs)
    graph = graph._replace(module=compat.without_duplicates(graph.module))
    joint = graph.joint
    heavy = {"mm", "addmm", "bmm", "convolution"}
    seconds = tuple(0.0 if node.is_variable else 10.0 if node.op in heavy else 1.0 for node in joint.training.nodes)
    by_name = {node.name: value for node, value in zip(joint.order, seconds)}
    for ratio in (0.5, 0.25):
        with activation_budget(ratio):
            pair = compat.min_cut_partition(compat.copied(graph.module), graph.inputs, **graph.options)
        peak, took = evaluated(pair, graph.options["num_fwd_outputs"], by_name)
        plan = plan_graph(joint, seconds, memory_budget=peak, deadline=Deadline.after(60))
        assert plan.recompute_seconds <= max(0.0, took - sum(seconds))
