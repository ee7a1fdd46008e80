"""Gradients that are handed less than by MXNet: what is chosen, and plans that say so where bits differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import GraphError, OptionError
from echo.frontend import implement
from echo.frontend.capture import training_graph
from echo.frontend.implement import implemented as exchanged
from echo.ir.gradient_rules import implementations, known
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, GradientRule
from echo.ir.ops import ops_with
from echo.passes.check_marks import with_marks
from echo.passes.rewrite import gradient_marks
from echo.plans.decisions import Mark
from echo.plans.plan import Plan
from tests.ir.test_ops_cached import DYNAMIC, STATIC
from tests.ir.test_ops_cached import run as run_cached
from tests.support.cases import model_case
from tests.support.fake_frontend import FakeFrontend
from tests.support.gradient_cases import ACTIVATIONS, CASES, LEAKY, case, chosen, implemented, run, under
from tests.support.numpy_builds import inner, of
from tests.support.training import Record, assert_same, bind, random_arrays, requests, train

Symbol = mx.sym.Symbol


# What is chosen --------------------------------------------------------------------------------------------------


def test_gradient_reads_the_map_that_is_kept_anyway() -> None:
    leaky, total = LEAKY["leaky"], of(inner.add, "x y")
    assert chosen(leaky).endswith(":0,2,2")  # the probe's gradient reads the output
    unread = lambda x, y, name: mx.sym.sum(leaky(mx.sym.square(x), y, name), axis=1)  # noqa: E731
    assert chosen(unread).endswith(":0,2,2")  # neither
    input_read = lambda x, y, name: mx.sym.sum(leaky(mx.sym.exp(x), y, name), axis=1)  # noqa: E731
    assert chosen(input_read).endswith(":0,1,1")
    assert chosen(total).endswith(":0,f0,f0")
    assert chosen(lambda x, y, name: mx.sym.sum(total(x, y, name), axis=1)).endswith(":0,0,0")


def test_inexact_formula_is_chosen_only_without_exact() -> None:
    assert chosen(ACTIVATIONS["tanh"]) == "_backward_Activation:0,2,2"
    assert chosen(ACTIVATIONS["tanh"], exact=False) == "_backward_tanh:0,1"
    tanh = ACTIVATIONS["tanh"]
    input_read = lambda x, y, name: mx.sym.sum(tanh(mx.sym.exp(x), y, name), axis=1)  # noqa: E731
    assert chosen(input_read, exact=False) == "_backward_Activation:0,2,2"


# Other formulas --------------------------------------------------------------------------------------------------


def deviation(got: Record, expected: Record) -> float:
    """The largest difference, as a part of the largest value of its array."""
    return max(
        float(np.abs(got[key] - value).max() / max(np.abs(value).max(), 1e-30)) for key, value in expected.items()
    )


# Rounding of 1 - y * y: y is one unit in the last place off, 6e-8; three steps of sums of 72 such products.
TOLERANCE = 1e-5


@pytest.mark.parametrize("flags", [None, DYNAMIC, STATIC], ids=["executor", "dynamic", "static"])
def test_inexact_formula_stays_within_tolerance(flags: dict[str, Any] | None) -> None:
    found = case(ACTIVATIONS["tanh"])

    def trained(symbol: Symbol) -> Record:
        return run(symbol) if flags is None else run_cached(symbol, flags)[0]

    expected = trained(found.symbol)
    got = trained(implemented(found, "_backward_Activation>_backward_tanh:0,1"))
    assert 0 < deviation(got, expected) < TOLERANCE
    wrong = trained(implemented(found, "_backward_Activation>_backward_sigmoid:0,1"))
    assert deviation(wrong, expected) > TOLERANCE


# Plans -----------------------------------------------------------------------------------------------------------


def planned(**options: Any) -> Plan:
    """Layers whose products read what tanh gives: nothing but the other formula does without what tanh takes."""
    with mx.name.NameManager():
        hidden = mx.sym.var("data")
        for _ in range(6):
            hidden = mx.sym.Activation(mx.sym.FullyConnected(hidden, num_hidden=512), act_type="tanh")
        symbol = mx.sym.LinearRegressionOutput(hidden, mx.sym.var("label"))
    return echo.plan(symbol, max_overhead=0.0, **options, data=(256, 512), label=(256, 512))


def texts(plan: Plan) -> list[str]:
    return [mark.attrs[GRADIENT_ATTRIBUTE] for mark in plan.marks if GRADIENT_ATTRIBUTE in mark.attrs]


def kept_bits(plan: Plan) -> list[bool]:
    """Of each gradient rule of a plan, whether it keeps all bits."""
    return [GradientRule.parse(text).exact for text in texts(plan)]


@pytest.mark.usefixtures("cheap_planning")
def test_plans_say_what_they_change() -> None:
    model = SMALL["nmt"]()
    exact = echo.plan(model.symbol, max_overhead=None, **model.shapes)
    assert all(kept_bits(exact))
    assert (
        f"{len(texts(exact))} gradients computed from fewer arrays than MXNet keeps: every bit stays" in exact.remarks
    )
    exact, other = planned(), planned(exact=False)
    assert all(kept_bits(exact))
    assert other.after.planned < exact.after.planned
    assert Plan.from_json(other.to_json()) == other
    count = kept_bits(other).count(False)
    assert count
    assert f"{count} gradients computed by another formula, which may change last bits (exact=False)" in other.remarks


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("exact", [True, False])
def test_training_with_such_a_plan(exact: bool) -> None:
    model = SMALL["nmt"]()
    values = random_arrays(model.symbol, model.shapes, limits=model.limits)
    wanted = requests(model.symbol, model.grad_req())
    expected = train(bind(model.symbol, values, wanted))
    optimized = echo.optimize(model.symbol, max_overhead=None, exact=exact, fuse=False)
    got = train(bind(optimized, values, wanted))
    assert texts(optimized.plans[-1])
    again = train(bind(echo.optimize(model.symbol, plan=optimized.plans[-1]), values, wanted))
    assert_same(again, got)
    if exact:
        assert_same(got, expected)
    else:
        assert deviation(got, expected) < 1e-3


@pytest.mark.usefixtures("cheap_planning")
def test_inexact_plan_without_gain_keeps_every_bit() -> None:
    """A tanh whose gradient is all there is: nothing to gain, so nothing is changed."""
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.Activation(mx.sym.var("data"), act_type="tanh")))
    plan = echo.plan(symbol, exact=False, grad_req="write", data=(64, 64))
    assert all(kept_bits(plan))


@pytest.mark.usefixtures("cheap_planning")
def test_sums_of_gradients_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    training = case(CASES["tanh"]).training
    chosen = implementations(training, exact=True, onednn=True)
    assert exchanged(training, chosen).implementations == chosen
    monkeypatch.setattr(implement, "accumulations", lambda *_: (True,))
    assert exchanged(training, chosen) is training


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", [*CASES, "nmt", "lm", "densenet121"])
def test_written_into_the_training_graph_as_mxnet_binds_them(name: str, exact: bool) -> None:
    found = case(CASES[name]) if name in CASES else model_case(name)
    chosen = implementations(found.training, exact=exact, onednn=True)
    marks = gradient_marks(found.graph, found.training, chosen)
    bound = training_graph(found.graph, found.binding, mx.cpu(), marks)
    expected = replace(bound, planned_bytes=found.training.planned_bytes, implementations=chosen)
    assert chosen
    assert exchanged(found.training, chosen) == expected


@pytest.mark.usefixtures("cheap_planning")
def test_equal_nodes_are_still_one() -> None:
    """MXNet merges equal nodes, which have to have equal marks."""
    with mx.name.NameManager():
        hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=512, name="fc")
        left, right = (mx.sym.Activation(hidden, act_type="tanh", name=name) for name in ("left", "right"))
        symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.square(left) * mx.sym.exp(right))))
    optimized = echo.optimize(symbol, max_overhead=None)
    executor = optimized.simple_bind(mx.cpu(), data=(64, 64))
    assert len(texts(optimized.plans[-1])) == 2
    assert executor.debug_str().count("Op:_backward_Activation") == 1


def test_wrong_option() -> None:
    with pytest.raises(OptionError, match="exact: expected True or False, got 1"):
        echo.plan(mx.sym.var("data"), exact=1)


# The hook --------------------------------------------------------------------------------------------------------


def test_plans_from_files_have_no_others() -> None:
    found = case(CASES["tanh"])
    for text in ("_backward_Activation>_backward_Activation:0,0,0", "_backward_Activation>_backward_sigmoid:0,1"):
        wrong = replace(planned(), marks=(Mark(under(found), "Activation", {GRADIENT_ATTRIBUTE: text}),))
        with pytest.raises(GraphError, match=r"marks: no gradient of Activation .'under'. is"):
            with_marks(found.graph, wrong, FakeFrontend(found.training))
    for op in ("exp", "LeakyReLU", "softmax", "_npi_add", "Concat"):
        assert all(rule.before.startswith("_backward") for rule in known(op, {"num_args": "2"}))


@pytest.mark.parametrize("op", sorted(ops_with(lambda row: row.lighter is not None)))
def test_each_family_of_lighter_gradients_has_rules(op: str) -> None:
    assert known(op, {"num_args": "2", "act_type": "tanh"})
