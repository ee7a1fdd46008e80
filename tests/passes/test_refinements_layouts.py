"""Layouts that were measured, in training: MXNet's results up to rounding, and what was measured is kept."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.estimators.cost_model import UnmeasurableError
from echo.frontend.framework import MxnetFramework
from echo.frontend.measure import race
from echo.frontend.symbols import graph_of
from echo.ir.training_node import TensorType
from echo.passes import choose
from echo.passes.pass_manager import Pass
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.passes.variant import PlanResult
from echo.planning.planner import Planner
from echo.runtime import bind_plan
from tests.runtime.test_fused import TOLERANCE, distance, gradients
from tests.runtime.test_masks import forget_plans
from tests.support.fused_models import BATCH, SIZE, STEPS, Example, trained_gluon

BUDGET = "1GB"  # within a budget memory does not decide
Race = Callable[[str], None]
real_race = MxnetFramework.race


def apart(build: Any, *sizes: int, **more: Any) -> Any:
    """A cell whose state goes through one more operator before each step, so that its steps are no layer."""

    class Apart(build):  # type: ignore[misc]
        def __call__(self, inputs: Any, states: Any) -> Any:
            return super().__call__(inputs, [state * 1 for state in states])

    return Apart(*sizes, **more)


def unrolled(cell: Any, steps: int = 3 * STEPS) -> Example:
    with mx.name.NameManager():
        outputs, _ = cell.unroll(steps, mx.sym.var("data"), layout="NTC", merge_outputs=True)
    return Example(outputs, {"data": (BATCH, steps, SIZE + 1)}, {}, {})


def two_layers() -> Any:
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(apart(mx.rnn.GRUCell, SIZE, prefix=f"l{layer}_"))
    return stack


def by_step() -> Example:
    """A layer of its own for the output of each step of an LSTM."""
    cell = mx.rnn.LSTMCell(SIZE, prefix="l_")
    outputs, _ = cell.unroll(STEPS, mx.sym.var("data"), layout="NTC", merge_outputs=False)
    weight, bias = mx.sym.var("out_weight"), mx.sym.var("out_bias")
    scores = [mx.sym.FullyConnected(out, weight, bias, num_hidden=4) for out in outputs]
    return Example(mx.sym.Concat(*scores, dim=0), {"data": (BATCH, STEPS, SIZE)}, {}, {})


EXAMPLES: Mapping[str, Callable[[], Example]] = {
    "gru cells": lambda: unrolled(apart(mx.rnn.GRUCell, SIZE)),
    "gru cells, few steps": lambda: unrolled(apart(mx.rnn.GRUCell, SIZE), 5),
    "gru cells, two layers": lambda: unrolled(two_layers()),
    "rnn cells": lambda: unrolled(apart(mx.rnn.RNNCell, SIZE)),
    "rnn cells, both ways": lambda: unrolled(
        mx.rnn.BidirectionalCell(*(apart(mx.rnn.RNNCell, SIZE, prefix=prefix) for prefix in ("l_", "r_")))
    ),
    "an output of each step": by_step,
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cheap_planning: None) -> Callable[..., list[str]]:
    """Has races end as the test says: the seconds of each layout by its kind. Returns those that were run."""
    runs: list[str] = []

    def give(batched_products: float = 1.0, transposed: float = 9.0, row: float = 5.0) -> list[str]:
        seconds = {"one by one": row, "batched_products": batched_products, "transposed": transposed}

        def run(_: MxnetFramework, graphs: Mapping[str, Any], types: Mapping[str, TensorType], limit: float) -> Any:
            runs.append(str(types["x0"]))
            assert 0 < limit <= 0.5
            return {name: seconds[name.partition(":")[0]] for name in graphs}

        monkeypatch.setattr(MxnetFramework, "race", run)
        return runs

    return give


def layouts(plan: echo.Plan) -> list[str]:
    return [name for name, _ in plan.fused if ":" in name]


@pytest.mark.every(6)
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("winner", ["batched_products", "transposed"])
@pytest.mark.parametrize("name", sorted({*EXAMPLES} - {"gru cells, few steps"}))  # it would need more than MXNet
def test_results_are_those_of_mxnet(name: str, winner: str, grad_req: str, measured: Callable[..., list[str]]) -> None:
    measured(**{winner: 0.5})
    example = EXAMPLES[name]()
    optimized = echo.optimize(example.symbol, memory_budget=BUDGET)
    found = gradients(optimized, example, grad_req)
    plan = optimized.plans[-1]
    assert layouts(plan), plan.notes
    assert all(layout.startswith(winner) for layout in layouts(plan))
    assert any(f", {layouts(plan)[0]}: " in note for note in plan.remarks)
    assert distance(found, gradients(example.symbol, example, grad_req)) < TOLERANCE


@pytest.mark.parametrize("winner", ["batched_products", "transposed"])
def test_one_product_for_many_counts_as_fused(
    winner: str,
    measured: Callable[..., list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Verify holds it to the tolerance of fused operators; monitors and get_optimized_symbol show the user's nodes."""
    monkeypatch.chdir(tmp_path)  # where verify would leave its folder
    measured(**{winner: 0.5})
    example = EXAMPLES["rnn cells"]()
    with caplog.at_level("INFO", logger="echo"):
        optimized = echo.optimize(example.symbol, memory_budget=BUDGET, verify=True)
        gradients(optimized, example, "write")
    plan = optimized.plans[-1]
    assert layouts(plan)
    assert layouts(plan) == [name for name, _ in plan.fused], "no operator is echo's"
    said = [record.message for record in caplog.records if "verify: " in record.message]
    assert [text.partition(",")[0] for text in said] == ["echo: verify: outputs"]
    bound, stock = (one.simple_bind(mx.cpu(), **example.shapes) for one in (optimized, example.symbol))
    names = [one.get_optimized_symbol().get_internals().list_outputs() for one in (bound, stock)]
    assert names[0] == names[1]
    shown: list[list[str]] = [[], []]
    for executor, seen in zip((bound, stock), shown):
        executor.set_monitor_callback(lambda name, _, seen=seen: seen.append(str(name)))
        executor.forward(is_train=True)
        mx.nd.waitall()
    assert shown[0] == shown[1]


def test_dependent_products_stay_and_the_plan_says_why(measured: Callable[..., list[str]]) -> None:
    runs = measured(batched_products=0.5)
    example = EXAMPLES["gru cells"]()
    plan = echo.plan(example.symbol, grad_req="write", memory_budget=BUDGET, **example.shapes)
    assert runs == [str(TensorType((BATCH, SIZE + 1)))]
    assert any("waits for the one before it" in missed.reason for missed in plan.missed)


@pytest.mark.parametrize("batched_products", [4.9, 5.0, 7.0])
def test_layout_that_gains_under_three_percent_is_not_batched(
    batched_products: float, measured: Callable[..., list[str]]
) -> None:
    measured(batched_products=batched_products)
    example = EXAMPLES["rnn cells"]()
    plan = echo.plan(example.symbol, grad_req="write", memory_budget=BUDGET, **example.shapes)
    assert not layouts(plan)
    assert any("nothing is faster than products one by one" in missed.reason for missed in plan.missed)


def test_layout_that_needs_more_than_stock_is_not_batched(
    measured: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget above what the original graph needs is no reason to need more than it."""
    full = choose.best_plan
    example = EXAMPLES["rnn cells"]()
    original = graph_of(example.symbol)
    options = {"grad_req": "write", "memory_budget": BUDGET, **example.shapes}

    def best(request: Request, passes: Sequence[Pass]) -> PlanResult:
        planned = full(request, passes)
        more = replace(planned.plan.after, planned=stock + 1)
        return planned if request.graph == original else planned._replace(plan=replace(planned.plan, after=more))

    measured(batched_products=0.5)
    without = echo.plan(example.symbol, **options)
    stock = without.before.planned
    assert layouts(without)
    forget_plans(monkeypatch)
    monkeypatch.setattr(choose, "best_plan", best)
    plan = echo.plan(example.symbol, **options)
    assert not layouts(plan)
    assert any("need more memory than the original graph" in note for note in plan.remarks), (plan.notes, plan.missed)


def test_kept_node_is_in_no_batched_layout(measured: Callable[..., list[str]]) -> None:
    runs = measured(batched_products=0.5)
    example = EXAMPLES["rnn cells"]()
    plan = echo.plan(example.symbol, grad_req="write", memory_budget=BUDGET, keep=["*_t3_i2h"], **example.shapes)
    assert not layouts(plan)
    assert not runs
    assert any("keep or recompute names" in missed.reason for missed in plan.missed)


def test_fuse_false_measures_nothing(measured: Callable[..., list[str]]) -> None:
    runs = measured()
    example = EXAMPLES["rnn cells"]()
    plan = echo.plan(example.symbol, grad_req="write", fuse=False, **example.shapes)
    assert not plan.fused
    assert not runs


@pytest.mark.every(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_layout_without_budget_is_taken_by_its_memory(
    name: str, measured: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(batched_products=0.5)
    example = EXAMPLES[name]()
    plan = echo.plan(example.symbol, grad_req="write", **example.shapes)
    monkeypatch.setattr("echo.passes.refinements.product_groups", lambda view: ([], []))
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "another"))
    without = echo.plan(example.symbol, grad_req="write", **example.shapes)
    assert not layouts(without)
    left = [note for note in plan.remarks if note.startswith("left as it is (") and "bytes planned, at most" in note]
    assert bool(layouts(plan)) != bool(left)
    assert plan.after.planned <= RULES.layout_bytes * without.after.planned
    if left:
        assert (plan.after, plan.fused) == (without.after, without.fused)


def planned_twice(monkeypatch: pytest.MonkeyPatch, files: str, happens: Callable[[Path], object]) -> list[echo.Plan]:
    """A plan, and one made again after something happened to files in the cache folder."""
    example = EXAMPLES["rnn cells"]()
    plans = []
    for _ in range(2):
        monkeypatch.setattr(bind_plan, "PLANNER", Planner())
        plans.append(echo.plan(example.symbol, grad_req="write", memory_budget=BUDGET, **example.shapes))
        for file in Path(os.environ["ECHO_CACHE_DIR"]).rglob(files):
            happens(file)
    return plans


def test_measured_layout_is_not_measured_again(
    measured: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = measured()
    first, second = planned_twice(monkeypatch, "plans/*", Path.unlink)
    assert len(runs) == 1
    assert first == second


def test_a_damaged_table_is_measured_again(measured: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = measured()
    damaged = '{"format": "echo-cost-table-2", "seconds": {"__import__": "os"}}'
    plans = planned_twice(monkeypatch, "*.json", lambda file: file.write_text(damaged))
    assert len(runs) == 2
    assert [layouts(plan) for plan in plans] == [["batched_products:10"]] * 2


def test_a_plan_is_loaded_without_measuring(
    tmp_path: Path, measured: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = measured()
    example = EXAMPLES["gru cells"]()
    plan = echo.plan(example.symbol, grad_req="write", memory_budget=BUDGET, **example.shapes)
    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    # as stored by echo, then as saved by the user
    assert echo.plan(example.symbol, grad_req="write", memory_budget=BUDGET, **example.shapes) == plan
    again = echo.optimize(example.symbol, plan=echo.load_plan(tmp_path / "plan.json"))
    found = gradients(again, example)
    assert again.plans[-1].fused == plan.fused
    assert layouts(plan)
    assert len(runs) == 1
    assert distance(found, gradients(example.symbol, example)) < TOLERANCE
    wrong = replace(plan, fused=(*plan.fused[:-1], ("batched_products:10", plan.fused[-1][1] + 1)))
    with pytest.raises(echo.EchoError, match="not the first of a group"):
        echo.optimize(example.symbol, plan=wrong).simple_bind(mx.cpu(), **example.shapes)


@pytest.mark.every(2)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_block_with_batched_layout_trains_within_tolerance(
    static: bool, grad_req: str, measured: Callable[..., list[str]]
) -> None:
    class Unrolled(mx.gluon.HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = apart(mx.gluon.rnn.GRUCell, 8, input_size=5, prefix="cell_")

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.cell.unroll(40, x, layout="NTC", merge_outputs=True)[0]

    measured(batched_products=0.5)
    stock, _ = trained_gluon(Unrolled, static, grad_req)
    found, plans = trained_gluon(Unrolled, static, grad_req, partial(echo.optimize, memory_budget=BUDGET))
    assert distance(found, stock) < TOLERANCE
    assert any(map(layouts, plans))


def test_module_with_batched_layout_trains_within_tolerance(measured: Callable[..., list[str]]) -> None:
    measured(batched_products=0.5)
    cell = apart(mx.rnn.GRUCell, SIZE, prefix="gru_")
    outputs, _ = cell.unroll(30, mx.sym.var("data"), layout="NTC", merge_outputs=True)
    symbol = mx.sym.LinearRegressionOutput(mx.sym.mean(outputs, axis=(1, 2)), mx.sym.var("label"))
    trained = []
    for fuse in (False, True):
        module = mx.mod.Module(echo.optimize(symbol, memory_budget=BUDGET) if fuse else symbol, label_names=("label",))
        module.bind([("data", (BATCH, 30, SIZE))], [("label", (BATCH,))])
        np.random.seed(1)
        mx.random.seed(1)
        module.init_params(mx.init.Uniform(0.3))
        module.init_optimizer(optimizer_params={"learning_rate": 0.5})
        data = mx.nd.array(np.random.default_rng(3).normal(0, 1, (BATCH, 30, SIZE)))
        for _ in range(3):
            module.forward_backward(mx.io.DataBatch([data], [mx.nd.ones((BATCH,))]))
            module.update()
        weights, _ = module.get_params()
        trained.append([weights[name].asnumpy() for name in sorted(weights)])
    assert distance(trained[1], trained[0]) < TOLERANCE


@pytest.mark.slow
def test_a_race_measures_without_touching_random_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    seen = []

    def watched(session: MxnetFramework, graphs: Any, types: Any, limit: float) -> Any:
        seen.append(real_race(session, graphs, types, 60))  # however busy the machine is
        return seen[-1]

    monkeypatch.setattr(MxnetFramework, "race", watched)
    mx.random.seed(4)
    np.random.seed(4)
    wanted = mx.nd.random.uniform(shape=(3,)).asnumpy(), np.random.rand()
    mx.random.seed(4)
    np.random.seed(4)
    example = EXAMPLES["rnn cells"]()
    echo.plan(example.symbol, grad_req="write", **example.shapes)
    found = mx.nd.random.uniform(shape=(3,)).asnumpy(), np.random.rand()
    assert np.array_equal(found[0], wanted[0])
    assert found[1] == wanted[1]
    (seconds,) = seen
    assert set(seconds) == {"one by one", "batched_products:10", f"transposed:{BATCH}"}
    assert all(0 < value < 60 for value in seconds.values())


def test_a_race_that_is_late_or_impossible_gives_no_seconds() -> None:
    x, w = mx.sym.var("x"), mx.sym.var("w")
    graph = echo.frontend.symbols.graph_of(mx.sym.FullyConnected(x, w, num_hidden=2, no_bias=True))
    types = {"x": TensorType((4, 3)), "w": TensorType((2, 3))}
    assert race({"a": graph}, types, mx.cpu(), 0) is None
    with pytest.raises(UnmeasurableError, match="MXNet does not run"):
        race({"a": graph}, {**types, "w": TensorType((2, 5))}, mx.cpu(), 1)
