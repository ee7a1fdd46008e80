"""Tests of what MXNet reads from the environment: match range, pointwise fusion, pools, spaces, lines of its log."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo import native
from echo.frontend.install import install_hook
from echo.frontend.mxnet_settings import (
    COPIES_VARIABLE,
    FUSION_VARIABLE,
    MATCH_RANGE_VARIABLE,
    RNN_VARIABLES,
    VARIABLE,
    changed_variable,
    default_match_range,
    fuses,
    match_range,
    pool,
    pool_settings,
    setting_of,
    unfused,
)
from echo.frontend.symbols import Binding
from echo.ir.training_graph import MemoryPool, Runner


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_all_variables_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "1")
    monkeypatch.delenv("SECOND", raising=False)
    with changed_variable("FIRST", "2"), changed_variable("SECOND", "3"), changed_variable("FIRST", "4"):
        child = os.fork()
        if not child:
            os._exit(int(os.environ["FIRST"]) + 10 * ("SECOND" in os.environ))
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 1
        assert (os.environ["FIRST"], os.environ["SECOND"]) == ("4", "3")
    assert (os.environ["FIRST"], os.environ.get("SECOND")) == ("1", None)


@pytest.mark.parametrize("before", [None, "4"])
def test_match_range_is_put_back_after_errors(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, "1")
    if before is None:
        monkeypatch.delenv(MATCH_RANGE_VARIABLE)
    else:
        monkeypatch.setenv(MATCH_RANGE_VARIABLE, before)
    with match_range(2):
        assert os.environ[MATCH_RANGE_VARIABLE] == "2"
        with contextlib.suppress(KeyError), match_range(8):
            assert default_match_range() == 8
            raise KeyError
        assert default_match_range() == 2
    assert os.environ.get(MATCH_RANGE_VARIABLE) == before


def test_none_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, "7")
    with match_range(None):
        assert os.environ[MATCH_RANGE_VARIABLE] == "7"


@pytest.mark.parametrize(("text", "expected"), [("4", 4), ("", 16), ("-1", 16), ("many", 16)])
def test_default_match_range_is_that_of_mxnet(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, text)
    assert default_match_range() == expected
    monkeypatch.delenv(MATCH_RANGE_VARIABLE)
    assert default_match_range() == 16


def test_second_thread_waits_for_the_match_range() -> None:
    entered = threading.Event()

    def enter() -> None:
        with match_range(8):
            entered.set()

    other = threading.Thread(target=enter)
    with match_range(2):
        other.start()
        assert not entered.wait(0.1)
    other.join(60)
    assert entered.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_another_thread_has_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, "4")
    with match_range(2), match_range(3):
        child = os.fork()
        if not child:
            os._exit(int(os.environ[MATCH_RANGE_VARIABLE]))
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 4
        assert default_match_range() == 3


def test_cpu_fuses_no_pointwise_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUSION_VARIABLE, "1")
    assert not fuses(mx.cpu())


@pytest.mark.parametrize(
    ("text", "wanted"), [("1", True), ("true", True), ("0", False), ("false", False), (None, True)]
)
def test_the_variable_is_read_as_mxnet_reads_it(
    text: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.runtime.Features, "is_enabled", lambda self, name: name == "CUDA_RTC")
    if text is None:
        monkeypatch.delenv(FUSION_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(FUSION_VARIABLE, text)
    assert fuses(mx.gpu(0)) == wanted


def test_a_thread_that_keeps_operators_apart_does_so_until_it_ends() -> None:
    assert install_hook() == ""
    keep = native.hook_library().echo_keep_unfused
    with unfused(mx.gpu(0)):
        with unfused(mx.gpu(0)), unfused(mx.cpu()):
            assert keep(1) == 1
        assert keep(1) == 1, "the outer one goes on"
    assert keep(0) == 0


def test_the_hook_says_whether_it_can_keep_them_apart() -> None:
    assert install_hook() == ""
    assert native.keeps_unfused()
    assert native.hook_library().echo_keep_unfused(0) == 0, "asking changes nothing"
    with unfused(mx.gpu(0)):
        assert native.keeps_unfused()
        assert native.hook_library().echo_keep_unfused(1) == 1


def binding(*requests: str) -> Binding:
    return Binding(((2,),) * len(requests), ("float32",) * len(requests), (), (), requests)


def test_arguments_without_gradients() -> None:
    setting = setting_of(("data", "weight", "mask"), binding("null", "write", "null"), "cpu")
    assert setting.untrained == {"data", "mask"}


@pytest.mark.parametrize(("copies", "device", "draws"), [("", "cpu", True), ("1", "cpu", True), ("2", "cpu", False),
                                                          ("", "gpu", False)])  # fmt: skip
def test_kernels_draw_where_one_generator_does(
    copies: str, device: str, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if copies:
        monkeypatch.setenv(COPIES_VARIABLE, copies)
    else:
        monkeypatch.delenv(COPIES_VARIABLE, raising=False)
    assert setting_of(("data",), binding("write"), device).draws is draws


@pytest.mark.parametrize(("value", "device", "none"), [(None, "cpu", True), ("", "cpu", True), ("1", "cpu", True),
                                                       ("0", "cpu", False), (None, "gpu", False)])  # fmt: skip
@pytest.mark.parametrize("name", RNN_VARIABLES)
def test_rnns_drop_nothing_where_onednn_runs_them(
    name: str, value: str | None, device: str, none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in RNN_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    assert setting_of(("data",), binding("write"), device).onednn_rnn is none


def trained(mode: str, bidirectional: bool, p: float) -> list[Any]:
    """The outputs and gradients of MXNet's own RNN operator in a training step, and random numbers drawn after it."""
    states = {"state_cell": mx.sym.var("c")} if mode == "lstm" else {}
    layers = mx.sym.RNN(mx.sym.var("x"), mx.sym.var("w"), mx.sym.var("h"), **states, mode=mode, num_layers=3,
                        state_size=5, bidirectional=bidirectional, p=p, state_outputs=True)  # fmt: skip
    executor = layers.simple_bind(mx.cpu(), x=(4, 3, 6))
    values = np.random.RandomState(0)
    for array in executor.arg_arrays:
        array[:] = values.uniform(-1, 1, array.shape)
    mx.random.seed(3)
    outputs = executor.forward(is_train=True)
    executor.backward([mx.nd.ones_like(output) for output in outputs])
    drawn = mx.nd.random.uniform(shape=(4,))
    return [array.asnumpy() for array in (*outputs, *executor.grad_arrays, drawn)]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_mxnets_own_onednn_rnn_there_and_something_elsewhere(
    mode: str, bidirectional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MXNET_USE_MKLDNN_RNN", raising=False)
    plain = trained(mode, bidirectional, 0.0)
    for expected, got in zip(plain, trained(mode, bidirectional, 0.5)):
        np.testing.assert_array_equal(expected, got)
    monkeypatch.setenv("MXNET_USE_MKLDNN_RNN", "0")
    assert not np.allclose(trained(mode, bidirectional, 0.0)[0], trained(mode, bidirectional, 0.5)[0])


KIND = "MXNET_GPU_MEM_POOL_TYPE"


def test_static_and_unpooled_memory_comes_from_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool("cpu", Runner.DYNAMIC) is None
    assert [pool("gpu", runner) for runner in (Runner.EXECUTOR, Runner.STATIC, Runner.SHAPED)] == [None] * 3
    monkeypatch.setenv(KIND, "Unpooled")
    assert pool("gpu", Runner.DYNAMIC) is None
    assert pool_settings("gpu", Runner.DYNAMIC) == {KIND: "Unpooled"}
    assert pool_settings("gpu", Runner.EXECUTOR) == pool_settings("cpu", Runner.DYNAMIC) == {}


def test_variables_change_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    default = MemoryPool(page=4096, coarse=2 << 20, powers=False)
    assert pool("gpu", Runner.DYNAMIC) == default
    assert pool_settings("gpu", Runner.DYNAMIC) == {"MXNET_ENGINE_TYPE": "NaiveEngine"}
    monkeypatch.delenv("MXNET_ENGINE_TYPE")
    threads = pool("gpu", Runner.DYNAMIC)
    assert threads is not None
    assert threads.reuse_delay > 0
    assert replace(threads, reuse_delay=0) == default
    assert pool_settings("gpu", Runner.DYNAMIC) == {}
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    monkeypatch.setenv("MXNET_GPU_MEM_POOL_PAGE_SIZE", "+1024")
    monkeypatch.setenv("MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "4096")
    assert pool("gpu", Runner.DYNAMIC) == MemoryPool(page=1024, coarse=4096, powers=False)
    monkeypatch.setenv(KIND, "Round")
    monkeypatch.setenv("MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF", "12")
    assert pool("gpu", Runner.DYNAMIC) == MemoryPool(page=1024, coarse=1 << 12, powers=True)
    monkeypatch.setenv("MXNET_GPU_MEM_POOL_PAGE_SIZE", "many")
    monkeypatch.setenv(KIND, "")
    monkeypatch.setenv("MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "")
    assert pool("gpu", Runner.DYNAMIC) == default
    monkeypatch.setenv("MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "-5")
    negative = pool("gpu", Runner.DYNAMIC)
    assert negative is not None
    assert negative.handed_out(3_000_000) == 3_002_368, "to MXNet, that is larger than any array"


ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, mxnet as mx, numpy as np
data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc1")
output = mx.sym.FullyConnected(mx.sym.Activation(data, act_type="tanh"), num_hidden=10, name="fc2")
output = mx.sym.SoftmaxOutput(output, name="softmax")
for batch_size in (64, 32):
    batches = mx.io.NDArrayIter(np.zeros((128, 32)), np.zeros(128), batch_size=batch_size)
    module = mx.mod.Module(output)
    module.fit(batches, num_epoch=1, optimizer="sgd")
    module.score(batches, "acc")
net = mx.gluon.nn.Dense(3, activation="tanh")
net.initialize()
net.hybridize()
with mx.autograd.record():
    loss = net(mx.nd.ones((4, 2)))
loss.backward()
mx.nd.waitall()
import os
assert os.environ.get("MXNET_SUBGRAPH_VERBOSE") == (sys.argv[1] or None)
"""


def lines(on: str, verbose: str, cache: Path) -> int:
    """How often the line appears, with echo or without."""
    environment = {**os.environ, "ECHO": on, "ECHO_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    environment.pop(VARIABLE, None)
    if verbose:
        environment[VARIABLE] = verbose
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, verbose]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).count("is activated")


@pytest.mark.every(2)
@pytest.mark.parametrize("verbose", ["", "0"])
def test_no_more_lines_than_without_echo(verbose: str, tmp_path: Path) -> None:
    stock = lines("0", verbose, tmp_path)
    assert bool(stock) == (not verbose)
    assert lines("1", verbose, tmp_path) <= stock


SCRIPT = """
import mxnet as mx
h = mx.sym.var("data")
for i in range(3):
    h = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.exp(mx.sym.tanh(h)), num_hidden=64), act_type="tanh")
executor = mx.sym.SoftmaxOutput(h, name="softmax").simple_bind(mx.cpu(), data=(64, 50))
executor.forward(is_train=True); executor.backward(); mx.nd.waitall()
print(type(executor).__name__)
"""

GLUON = """
import sys
import mxnet as mx
from mxnet import autograd, gluon
net = gluon.nn.HybridSequential()
for i in range(4):
    pointwise = gluon.nn.HybridLambda(lambda F, x: F.tanh(F.exp(F.tanh(x))))
    net.add(gluon.nn.Dense(64), pointwise, gluon.nn.Activation("tanh"), gluon.nn.HybridLambda("softmax"))
net.initialize()
net.hybridize(**FLAGS)
for rows in (640, 640, 720):
    with autograd.record():
        loss = net(mx.nd.ones((rows, 50))).sum()
    loss.backward()
    net(mx.nd.ones((64, 50)))
mx.nd.waitall()
plans = getattr(net._cached_op, "plans", {}).values()
print("planned" if any(not plan.changes_nothing for plan in plans) else "stock")
"""


def said(folder: Path, script: str = SCRIPT, **variables: str) -> tuple[str, list[str]]:
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    values.update({"ECHO_CACHE_DIR": str(folder / "cache"), "MXNET_MKLDNN_ENABLED": "0", **variables})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, env=values
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith(("operator =", "params =", "input storage"))]
    return done.stdout.strip(), sorted(lines)


@pytest.mark.slow
def test_lines_on_storage_types_are_those_of_stock(tmp_path: Path) -> None:
    kind, stock = said(tmp_path)
    assert kind == "Executor"
    assert "operator = Activation" in stock
    for _ in ("searched", "from the disk"):
        assert said(tmp_path, ECHO="1") == ("PlannedExecutor", stock)


@pytest.mark.slow
@pytest.mark.parametrize("verbose", ["0", "1"])
def test_users_own_switch_of_these_lines_stays(tmp_path: Path, verbose: str) -> None:
    _, lines = said(tmp_path, ECHO="1", MXNET_STORAGE_FALLBACK_LOG_VERBOSE=verbose)
    assert bool(lines) == (verbose == "1")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_lines_of_a_hybridized_block_are_those_of_stock(tmp_path: Path, flags: dict[str, bool]) -> None:
    script = GLUON.replace("FLAGS", repr(flags))
    kind, stock = said(tmp_path, script)
    assert kind == "stock"
    assert "operator = _backward_softmax" in stock
    for _ in ("searched", "from the disk"):
        assert said(tmp_path, script, ECHO="1") == ("planned", stock)
