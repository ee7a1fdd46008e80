"""``verify``: a plan that is wrong on purpose is found and never trains; a right one leaves training as it is."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import echo
from echo.errors import OptionError, VerificationError
from echo.ir.graph import Graph
from echo.plans.options import Options
from echo.plans.variables import options_from
from echo.runtime.executor import PlannedExecutor
from echo.verify import compare
from tests.support.planning import plan_other_graphs
from tests.support.training import arrays, assert_alive, assert_same
from tests.support.wrong_plans import FLAGS, OPTIONS, folders, inputs, made, warnings_of

pytestmark = pytest.mark.usefixtures("cheap_planning", "own_folder")
S = mx.sym


def network(*ops: str) -> S.Symbol:
    hidden = S.var("data")
    for i in range(3):
        hidden = S.FullyConnected(hidden, num_hidden=32, name=f"fc{i}")
        hidden = S.BatchNorm(hidden, fix_gamma=False, name=f"bn{i}")
        hidden = S.sigmoid(S.tanh(S.sin(hidden)), name=f"sigmoid{i}")
        if "Dropout" in ops:
            hidden = S.Dropout(hidden, p=0.3, name=f"drop{i}")
    return S.SoftmaxOutput(hidden, S.var("softmax_label"), name="softmax")


def bound(on: bool, symbol: S.Symbol, grad_req: str = "add", **options: Any) -> mx.executor.Executor:
    symbol = echo.optimize(symbol, **{**OPTIONS, **options}) if on else symbol
    executor = symbol.simple_bind(mx.cpu(), grad_req=grad_req, data=(64, 16), softmax_label=(64,))
    generator = np.random.RandomState(0)
    for name, array in sorted(executor.arg_dict.items()):
        array[:] = generator.randint(0, 5, array.shape) if "label" in name else generator.normal(0, 0.3, array.shape)
    for array in [*executor.aux_arrays, *executor.grad_arrays]:
        array[:] = generator.uniform(0.3, 1, array.shape)
    return executor


def trained(executor: mx.executor.Executor) -> dict[str, Any]:
    mx.random.seed(7)
    seen = {}
    for step in range(3):
        executor.forward(is_train=True, data=mx.nd.ones((64, 16)) * step)
        executor.backward()
        seen.update({f"step {step} {name}": value for name, value in arrays(executor).items()})
        seen[f"step {step} random"] = mx.nd.random.uniform(shape=8).asnumpy()
        for name in ("fc0_weight", "bn1_beta"):
            executor.arg_dict[name][:] -= 0.01 * executor.grad_dict[name]
    assert_alive(seen)
    return seen


# Executors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("ops", [(), ("Dropout",)], ids=["", "Dropout"])
def test_a_right_plan_trains_as_it_did(ops: tuple[str, ...], grad_req: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "echo")
    executor = bound(True, network(*ops), grad_req)
    assert executor._applied.marked
    assert_same(trained(executor), trained(bound(False, network(*ops), grad_req)))
    assert not warnings_of(caplog)
    assert sum("are those of the original graph" in record.getMessage() for record in caplog.records) == 1
    assert not folders()


@pytest.mark.usefixtures("wrong_plans")
def test_a_wrong_plan_is_found_and_nothing_wrong_comes_out(caplog: pytest.LogCaptureFixture) -> None:
    executor = bound(True, network("Dropout"))
    assert isinstance(executor, PlannedExecutor)
    assert_same(trained(executor), trained(bound(False, network("Dropout"))))
    (said,) = warnings_of(caplog)
    (folder,) = folders()
    assert "output 0 by " in said
    assert str(folder) in said
    about = json.loads((folder / "about.json").read_text())
    assert about["runner"] == "executor"
    assert about["arrays"]["argument data"] == [[64, 16], "float32"]
    assert about["requests"]["fc0_weight"] == "add"
    assert about["versions"]["mxnet"] == "1.9.1"
    assert echo.load_plan(folder / "plan.json").recomputed_nodes
    differing = np.load(folder / "differences.npz")
    assert {"own output 0", "echo output 0", "own gradient data", "echo gradient data"} <= set(differing)
    assert not np.array_equal(differing["own output 0"], differing["echo output 0"])


@pytest.mark.usefixtures("wrong_plans")
def test_strict_raises() -> None:
    executor = bound(True, network(), strict=True)
    with pytest.raises(VerificationError, match="output 0 by"):
        executor.forward(is_train=True)


@pytest.mark.usefixtures("wrong_plans")
def test_transparent_mode_goes_on_with_the_users_graph(caplog: pytest.LogCaptureFixture) -> None:
    with echo.enable(**OPTIONS):
        executor = bound(False, network())
        assert isinstance(executor, PlannedExecutor)
        got = trained(executor)
    assert_same(got, trained(bound(False, network())))
    assert len(warnings_of(caplog)) == len(folders()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_plans")
@pytest.mark.parametrize("runner", ["executor", *FLAGS])
def test_the_script_of_the_report_finds_it_again(runner: str) -> None:
    if runner == "executor":
        trained(bound(True, network()))
    else:
        with autograd.record():
            made(True, FLAGS[runner])(inputs())
    (folder,) = folders()
    found = subprocess.run([sys.executable, str(folder / "reproduce.py")], capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    assert "output 0 by " in found.stdout
    (folder / "bound.json").write_text((folder / "symbol.json").read_text())
    found = subprocess.run([sys.executable, str(folder / "reproduce.py")], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "no difference\n"), found.stderr


def test_a_mark_that_makes_gradients_alone_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def marked(graph: Graph) -> Graph:
        number = next(at for at, node in enumerate(graph.nodes) if node.name == "sigmoid1")
        return graph.with_attrs({number: {"__echo_gradient__": WRONG_GRADIENT}})

    plan_other_graphs(monkeypatch, marked)
    executor = bound(True, network())
    assert_same(trained(executor), trained(bound(False, network())))
    (said,) = warnings_of(caplog)
    assert "gradient" in said
    assert "output" not in said


WRONG_GRADIENT = "_backward_sigmoid>_backward_tanh:0,1"


def test_each_shape_is_verified(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "echo")
    executor = bound(True, network())
    executor.forward(is_train=True)
    executor.forward(is_train=True)
    other = executor.reshape(data=(32, 16), softmax_label=(32,))
    other.forward(is_train=True)
    larger = executor.reshape(data=(96, 16), softmax_label=(96,), allow_up_sizing=True)
    larger.forward(is_train=True)
    assert sum("are those of the original graph" in record.getMessage() for record in caplog.records) == 3


def test_wrong_inputs_are_mxnets_error(caplog: pytest.LogCaptureFixture) -> None:
    executor = bound(True, network())
    with pytest.raises((TypeError, ValueError), match="label2"):
        executor.forward(is_train=True, label2=mx.nd.ones((64,)))


def test_custom_operators_run_once(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    class Count(mx.operator.CustomOp):  # type: ignore[misc]
        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            calls.append(1)
            self.assign(out_data[0], req[0], in_data[0])

        def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
            self.assign(in_grad[0], req[0], out_grad[0])

    @mx.operator.register("echo_count")
    class Prop(mx.operator.CustomOpProp):  # type: ignore[misc]
        def create_operator(self, *_: Any) -> Count:
            return Count()

    symbol = S.Custom(network()[0], op_type="echo_count", name="count")
    executor = echo.optimize(symbol, **OPTIONS).simple_bind(mx.cpu(), data=(64, 16), softmax_label=(64,))
    executor.forward(is_train=True)
    mx.nd.waitall()
    assert len(calls) == 1
    assert any("not verified: it has a Custom operator" in text for text in warnings_of(caplog))


def test_fused_operators_have_a_tolerance(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "echo")
    stack = mx.rnn.SequentialRNNCell()
    for i in range(2):
        stack.add(mx.rnn.LSTMCell(32, prefix=f"l{i}_"))
    outputs, _ = stack.unroll(6, S.var("data"), layout="NTC", merge_outputs=True)
    executor = echo.optimize(S.sum(outputs), verify=True).simple_bind(mx.cpu(), data=(16, 6, 32))
    assert executor._applied.fuses
    for array in executor.arg_arrays:
        array[:] = np.random.RandomState(0).normal(0, 0.1, array.shape)
    executor.forward(is_train=True)
    assert not warnings_of(caplog)
    assert "are those of the original graph" in caplog.text


def test_gradient_of_rounding_alone_is_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    """The gradient of a bias in front of BatchNorm, which is 0, and 1e-9 as it is computed."""
    outputs, _ = mx.rnn.LSTMCell(32, prefix="l_").unroll(6, S.var("data"), layout="NTC", merge_outputs=True)
    hidden = S.FullyConnected(S.reshape(outputs, shape=(-1, 32)), num_hidden=16, name="dense")
    symbol = S.MakeLoss(S.sum(S.tanh(S.BatchNorm(hidden, fix_gamma=False, name="norm"))))
    executor = echo.optimize(symbol, verify=True).simple_bind(mx.cpu(), data=(16, 6, 32))
    assert executor._applied.fuses
    for array in executor.arg_arrays:
        array[:] = np.random.RandomState(0).normal(0, 0.1, array.shape)
    executor.forward(is_train=True)
    assert not warnings_of(caplog)
    executor.backward()
    gradients = {name: float(abs(array).max().asscalar()) for name, array in executor.grad_dict.items()}
    assert gradients["dense_bias"] < 1e-4 * max(gradients.values())


# Options ---------------------------------------------------------------------------------------------------------


def test_difference_needs_unequal_bits_or_more_than_tolerance() -> None:
    one = np.float32([1, 2, np.nan, np.inf])
    close = np.float32([1.00002, 2, np.nan, np.inf])
    far = np.float32([1.0001, 2, np.nan, np.inf])
    assert compare._difference("x", one, one.copy(), False, 0.0) is None
    assert compare._difference("x", one, close, False, 0.0) is not None
    assert compare._difference("x", one, close, True, 0.0) is None
    assert compare._difference("x", one, far, True, 0.0) is not None
    for lost in ([1, 2, 3, np.inf], [1, 2, np.nan, 3], [1, np.nan, np.nan, np.inf]):
        assert compare._difference("x", one, np.float32(lost), True, 0.0).off == np.inf
    assert compare._difference("x", np.float32([0.0]), np.float32([-0.0]), False, 0.0) is not None
    nothing, little = np.zeros(2, "float32"), np.float32([1e-9, 0])
    assert compare._difference("x", nothing, little, True, 0.0) is not None
    assert compare._difference("x", nothing, little, True, 1e-4) is None
    assert compare._difference("x", nothing, little, False, 1e-4) is not None
    assert "became" in str(compare._difference("x", one, one.astype("float64"), True, 0.0))


def test_the_option() -> None:
    assert options_from({"ECHO_VERIFY": "1"}).verify
    assert Options(verify=True).key == Options().key  # the same plans
    with pytest.raises(OptionError, match="verify: expected True or False"):
        Options(verify=2)
