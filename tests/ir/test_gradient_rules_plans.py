"""Gradients that are handed less than by MXNet: what is chosen, and plans that say so where bits differ."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import GraphError, OptionError
from echo.frontend import derived_graphs
from echo.frontend.capture import training_graph
from echo.frontend.derived_graphs import apply_gradient_rules as exchanged
from echo.ir.gradient_rules import gradient_rules, known
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from echo.ir.ops import ops_with
from echo.passes.check_marks import with_marks
from echo.passes.rewrite import gradient_marks
from echo.plans.decisions import Mark
from echo.plans.plan import Plan
from tests.support.cases import model_case
from tests.support.fake_frontend import FakeFramework
from tests.support.gradient_cases import ACTIVATIONS, CASES, LEAKY, case, chosen, under
from tests.support.numpy_builds import inner, of
from tests.support.training import assert_same, bind, random_arrays, requests, train

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


def test_tanh_gradient_reads_the_input_since_the_output_would_change_bits() -> None:
    assert chosen(ACTIVATIONS["tanh"]) == "_backward_Activation:0,2,2"


# Plans -----------------------------------------------------------------------------------------------------------


def texts(plan: Plan) -> list[str]:
    return [mark.attrs[GRADIENT_ATTRIBUTE] for mark in plan.marks if GRADIENT_ATTRIBUTE in mark.attrs]


@pytest.mark.usefixtures("cheap_planning")
def test_plans_say_what_they_change() -> None:
    model = SMALL["nmt"]()
    plan = echo.plan(model.symbol, max_overhead=None, **model.shapes)
    assert f"{len(texts(plan))} gradients computed from fewer arrays than MXNet keeps: every bit stays" in plan.remarks


@pytest.mark.usefixtures("cheap_planning")
def test_training_with_such_a_plan() -> None:
    model = SMALL["nmt"]()
    values = random_arrays(model.symbol, model.shapes, limits=model.limits)
    wanted = requests(model.symbol, model.grad_req())
    expected = train(bind(model.symbol, values, wanted))
    optimized = echo.optimize(model.symbol, max_overhead=None, exact=True)
    got = train(bind(optimized, values, wanted))
    assert texts(optimized.plans[-1])
    again = train(bind(echo.optimize(model.symbol, plan=optimized.plans[-1]), values, wanted))
    assert_same(again, got)
    assert_same(got, expected)


@pytest.mark.usefixtures("cheap_planning")
def test_sums_of_gradients_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    training = case(CASES["tanh"]).training
    chosen = gradient_rules(training, onednn=True)
    assert exchanged(training, chosen).gradient_rules == chosen
    monkeypatch.setattr(derived_graphs, "accumulations", lambda *_: (True,))
    assert exchanged(training, chosen) is training


@pytest.mark.parametrize("name", [*CASES, "nmt", "lm", "densenet121"])
def test_written_into_the_training_graph_as_mxnet_binds_them(name: str) -> None:
    found = case(CASES[name]) if name in CASES else model_case(name)
    chosen = gradient_rules(found.training, onednn=True)
    marks = gradient_marks(found.graph, found.training, chosen)
    bound = training_graph(found.graph, found.binding, mx.cpu(), marks)
    expected = replace(bound, planned_bytes=found.training.planned_bytes, gradient_rules=chosen)
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
    model = SMALL["nmt"]()
    plan = echo.plan(model.symbol, **model.shapes)
    for text in ("_backward_Activation>_backward_Activation:0,0,0", "_backward_Activation>_backward_sigmoid:0,1"):
        wrong = replace(plan, marks=(Mark(under(found), "Activation", {GRADIENT_ATTRIBUTE: text}),))
        with pytest.raises(GraphError, match=r"marks: no gradient of Activation .'under'. is"):
            with_marks(found.graph, wrong, FakeFramework(found.training))
    for op in ("exp", "LeakyReLU", "softmax", "_npi_add", "Concat"):
        assert all(rule.before.startswith("_backward") for rule in known(op, {"num_args": "2"}))


@pytest.mark.parametrize("op", sorted(ops_with(lambda row: row.gradient.rule_family is not None)))
def test_each_family_of_lighter_gradients_has_rules(op: str) -> None:
    assert known(op, {"num_args": "2", "act_type": "tanh"})
