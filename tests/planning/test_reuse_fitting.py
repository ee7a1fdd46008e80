"""A plan that was saved applies to what it was made for, bit for bit, and to nothing else."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest
from mxnet import autograd

import echo
from benchmarks.models import SMALL
from echo.cli import main
from echo.errors import OptionError, PlanError
from echo.frontend.framework import MxnetFramework
from echo.planning.planner import Planner
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.plans.variables import options_from
from echo.runtime import bind_plan
from tests.support.training import assert_same, bind, random_arrays, train

pytestmark = pytest.mark.usefixtures("cheap_planning")
MODEL = SMALL["nmt"]()


@pytest.fixture(scope="module")
def searched() -> Plan:
    return echo.plan(MODEL.symbol, max_overhead=None, fuse=False, **MODEL.shapes)


@pytest.fixture
def saved(searched: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    searched.save(path)
    return path


@pytest.fixture
def no_search(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From here on nothing may be planned; the plan was saved before."""
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr("echo.pipeline.plan", lambda _: pytest.fail("planned again"))
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: pytest.fail("looked for another plan"))
    return saved


def bound(symbol: mx.sym.Symbol, batch: int | None = None) -> mx.executor.Executor:
    shapes = {name: (batch or shape[0], *shape[1:]) for name, shape in MODEL.shapes.items()}
    return symbol.simple_bind(mx.cpu(), grad_req=MODEL.grad_req(), **shapes)


def test_a_saved_plan_is_applied_as_it_is(no_search: Path) -> None:
    plan = echo.load_plan(no_search)
    optimized = echo.optimize(MODEL.symbol, plan=plan)
    executor = bound(optimized)
    assert optimized.plans == [plan]
    assert executor.debug_str().count("_echo\nInputs:") == plan.recomputed_nodes > 0
    assert echo.plan(MODEL.symbol, plan=plan, **MODEL.shapes) == plan


def test_the_same_bits(no_search: Path) -> None:
    limits = {name: 20 for name in MODEL.shapes}
    values = random_arrays(MODEL.symbol, MODEL.shapes, limits=limits)
    expected = train(bind(MODEL.symbol, values, MODEL.grad_req()))
    optimized = echo.optimize(MODEL.symbol, plan=echo.load_plan(no_search))
    assert_same(train(bind(optimized, values, MODEL.grad_req())), expected)


def test_one_of_several_plans(no_search: Path) -> None:
    plan = echo.load_plan(no_search)
    other = replace(plan, key=replace(plan.key, graph="other"))
    optimized = echo.optimize(MODEL.symbol, plan=[other, plan])
    bound(optimized)
    assert optimized.plans == [plan]
    with pytest.raises(PlanError, match="each of the 2 plans was made for something else; graph: the same operators"):
        bound(echo.optimize(MODEL.symbol, plan=[other, other]))


def test_another_batch_size_is_refused(no_search: Path) -> None:
    optimized = echo.optimize(MODEL.symbol, plan=echo.load_plan(no_search))
    wrong = r"argument 'target': expected shape \(32, 6\), got \(31, 6\).*another batch size"
    with pytest.raises(PlanError, match=wrong):
        bound(optimized, batch=31)


def changed(plan: Plan, **key: Any) -> Plan:
    return replace(plan, key=replace(plan.key, **key))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({"graph": "other"}, "graph: the same operators, with other attributes"),
        ({"device": "gpu"}, "device: expected gpu, got cpu"),
        ({"runner": "static"}, "runner: expected a static CachedOp, got an executor"),
        ({"settings": {"MXNET_BACKWARD_DO_MIRROR": "1"}}, "MXNET_BACKWARD_DO_MIRROR: expected '1', got ''"),
    ],
)
def test_plan_for_another_subject_names_the_difference(no_search: Path, key: dict[str, Any], message: str) -> None:
    plan = changed(echo.load_plan(no_search), **key)
    with pytest.raises(PlanError, match=message):
        bound(echo.optimize(MODEL.symbol, plan=plan))
    with pytest.raises(PlanError, match=message):
        echo.optimize(MODEL.symbol, plan=plan, grad_req=MODEL.grad_req(), **MODEL.shapes)


def test_another_way_of_applying_is_refused(no_search: Path) -> None:
    plan = replace(echo.load_plan(no_search), applied="mirror")
    with pytest.raises(PlanError, match="applied by: expected mirror, got hook"):
        bound(echo.optimize(MODEL.symbol, plan=plan))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda value: value["marks"].__delitem__(slice(0, None, 2)), "not what MXNet makes of it: expected .* bytes"),
        (lambda value: value["marks"][0].__setitem__(0, 99999), "marks: there is no node 99999"),
        (lambda value: value["marks"][0].__setitem__(1, "exp"), "marks: expected node .* to be an operator exp, got"),
        (lambda value: value["marks"][0][2].update(num_hidden="3"), "cannot have the attribute 'num_hidden' = '3'"),
        (lambda value: value["marks"][0][2].update(__echo_recompute__="40"), "expected outputs of 0"),
        (lambda value: value["marks"][0][2].update(__echo_recompute__="0@5,2"), "expected ascending positions"),
        (lambda value: value["marks"][0][2].update(__echo_match_range__="7"), "expected the plan's match range, got"),
        (lambda value: value["marks"][0][2].clear(), "expected attributes, got none"),
        (lambda value: value["marks"].reverse(), "expected one for a node, in the order of their numbers"),
        (lambda value: value.update(match_range=7), "match_range: no plan for such a graph has 7"),
    ],
)
def test_a_plan_that_was_edited_is_refused(no_search: Path, damage: Any, message: str) -> None:
    value = echo.load_plan(no_search).to_json()
    damage(value)
    with pytest.raises(PlanError, match=message):
        bound(echo.optimize(MODEL.symbol, plan=Plan.from_json(value)))


def test_gradients_that_this_mxnet_computes_in_another_way(no_search: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized = echo.optimize(MODEL.symbol, plan=echo.load_plan(no_search))
    monkeypatch.setattr(MxnetFramework, "onednn", False)
    with pytest.raises(PlanError, match=r"computed by '_backward_Activation>.*, which does not hold for its type"):
        bound(optimized)


def test_gradients_that_were_edited(no_search: Path) -> None:
    """Known for the operator, and wrong here."""
    value = echo.load_plan(no_search).to_json()
    mark = next(mark for mark in value["marks"] if "_backward_sigmoid" in mark[2].get("__echo_gradient__", ""))
    mark[2]["__echo_gradient__"] = "_backward_Activation>_backward_Activation:0,2,2"
    with pytest.raises(PlanError, match="computed by '_backward_Activation>_backward_Activation:0,2,2'"):
        bound(echo.optimize(MODEL.symbol, plan=Plan.from_json(value)))


def test_sums_of_gradients_stay_as_they_are(no_search: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = MxnetFramework.mxnet_memory_plan
    answers = iter([lambda found: found, lambda found: (found[0], (*found[1], True))])
    monkeypatch.setattr(MxnetFramework, "mxnet_memory_plan", lambda *given: next(answers)(full(*given)))
    with pytest.raises(PlanError, match="adds up gradients in another way"):
        bound(echo.optimize(MODEL.symbol, plan=echo.load_plan(no_search)))


def test_a_plan_that_changes_nothing_changes_nothing(no_search: Path) -> None:
    plan = replace(echo.load_plan(no_search), applied="none", marks=())
    assert "_echo" not in bound(echo.optimize(MODEL.symbol, plan=plan)).debug_str()


def test_fused_plans_are_refused_where_nothing_may_be_fused(saved: Path) -> None:
    plan = echo.load_plan(saved)
    fused = replace(plan, fused=(("lstm_cell", 3),))
    assert Options.of(plan=[plan], fuse=False).plans == (plan,)
    assert Options.of(plan=[plan, fused]).plans == (plan, fused)
    with pytest.raises(OptionError, match="expected none with fused operators with fuse=False"):
        echo.optimize(MODEL.symbol, plan=[plan, fused], fuse=False)


def test_options_next_to_a_plan_are_refused(no_search: Path) -> None:
    plan = echo.load_plan(no_search)
    with pytest.raises(OptionError, match="plan: it is applied as it is, expected no option 'max_overhead' next to it"):
        echo.optimize(MODEL.symbol, plan=plan, max_overhead=None)
    for wrong in (5, "plan.json", [plan, None]):
        with pytest.raises(OptionError, match=r"plan: expected a Plan or several, as of echo\.load_plan, got"):
            echo.optimize(MODEL.symbol, plan=wrong)


# Transparent mode and the environment ---------------------------------------------------------------------------


def test_transparent_mode_plans_again(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = echo.load_plan(saved)
    with echo.enable(plan=plan, max_overhead=None), caplog.at_level(logging.WARNING, "echo"):
        assert bound(MODEL.symbol).debug_str().count("_echo\nInputs:") == plan.recomputed_nodes
        assert not caplog.records
        assert "_echo\n" in bound(MODEL.symbol, batch=16).debug_str()
    (record,) = caplog.records
    assert "expected shape (32, 6), got (16, 6)" in record.getMessage()
    assert record.getMessage().endswith("A new plan is made.")


def test_strict_transparent_mode_raises(saved: Path) -> None:
    with echo.enable(plan=echo.load_plan(saved), strict=True), pytest.raises(PlanError, match="expected shape"):
        bound(MODEL.symbol, batch=16)


def test_plans_of_the_environment(saved: Path, tmp_path: Path) -> None:
    plan = echo.load_plan(saved)
    assert options_from({"ECHO_PLAN": f"{saved}:{saved}"}).plans == (plan, plan)
    with pytest.raises(OptionError, match=r"ECHO_PLAN: expected files that Plan\.save wrote: .*nothing"):
        options_from({"ECHO_PLAN": str(tmp_path / "nothing")})
    (tmp_path / "half").write_bytes(saved.read_bytes()[:200])
    with pytest.raises(OptionError, match=r"ECHO_PLAN: .*half is not a plan"):
        options_from({"ECHO_PLAN": str(tmp_path / "half")})


def test_reshape_to_other_shapes_plans_again(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor = bound(echo.optimize(MODEL.symbol, plan=echo.load_plan(saved)))
    larger = {name: (64, *shape[1:]) for name, shape in MODEL.shapes.items()}
    with caplog.at_level(logging.WARNING, "echo"):
        assert "_echo\n" in executor.reshape(allow_up_sizing=True, **larger).debug_str()
    assert "A new plan is made." in caplog.text


# Gluon ----------------------------------------------------------------------------------------------------------


def net() -> mx.gluon.nn.HybridSequential:
    found = mx.gluon.nn.HybridSequential()
    for _ in range(4):
        found.add(mx.gluon.nn.Dense(256), mx.gluon.nn.LayerNorm(), mx.gluon.nn.Swish())
    found.initialize()
    return found


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}], ids=["dynamic", "static"])
def test_saved_plan_applies_to_the_same_block_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool]
) -> None:
    first = net()
    first.hybridize(**flags)
    plan = echo.plan(first, max_overhead=None, data=(64, 32))
    assert plan.recomputed
    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr("echo.pipeline.plan", lambda _: pytest.fail("planned again"))
    second = echo.optimize(net(), plan=echo.load_plan(tmp_path / "plan.json"))  # other names: Gluon counts on
    second.hybridize(**flags)
    with autograd.record():
        loss = second(mx.nd.ones((64, 32))).sum()
    loss.backward()
    mx.nd.waitall()
    assert list(second._cached_op.plans.values()) == [plan]
    with pytest.raises(PlanError, match=r"argument '.*': expected shape \(64, 32\), got \(63, 32\)"), autograd.record():
        second(mx.nd.ones((63, 32)))
    second.hybridize(static_alloc=not flags)
    with pytest.raises(PlanError, match=r"runner: expected a .* CachedOp, got a .* CachedOp"), autograd.record():
        second(mx.nd.ones((64, 32)))


# Command line ---------------------------------------------------------------------------------------------------


def test_command_line(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = echo.load_plan(saved)
    name = f"{plan.recomputed[0].name}:{plan.recomputed[0].output}"
    assert main.main(["plan", "--load", str(saved), "--why", name]) == 0
    assert capsys.readouterr().out == f"{plan.why(name)}\n"
    assert main.main(["plan", "--load", str(saved), "--why", "nothing"]) == 2
    assert "mxecho: no gradient reads a feature map named 'nothing'" in capsys.readouterr().err
    MODEL.symbol.save(str(tmp_path / "model.json"))
    shapes = [f"{key}={','.join(map(str, shape))}" for key, shape in MODEL.shapes.items()]
    options = ["--max-overhead", "none", "--no-fuse", "--why", name]
    assert main.main(["plan", str(tmp_path / "model.json"), *shapes, *options]) == 0
    assert "instead: " in capsys.readouterr().out
