"""``verify`` also counts MXNet's storage: a plan's graph that holds more is found and never trains."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import echo
from benchmarks.sockeye_log import counter_peak
from echo.errors import NativeError
from echo.frontend.symbols import graph_of
from echo.verify import storage as held_module
from echo.verify.storage import LEAST, Difference, grows, growth, peak_storage
from tests.support.planning import plan_other_graphs

pytestmark = pytest.mark.usefixtures("cheap_planning", "own_folder")
S = mx.sym
OPTIONS = {"fuse": False, "max_overhead": None, "verify": True}
MB = 2**20
ROOT = Path(__file__).resolve().parents[2]


def network(copies: int = 0) -> S.Symbol:
    """With so many unneeded copies of a map, held to the end of the step."""
    hidden = S.FullyConnected(S.var("data", dtype="float32"), num_hidden=64, name="fc0")
    for i in range(3):
        hidden = S.FullyConnected(S.sigmoid(S.tanh(S.sin(hidden))), num_hidden=64, name=f"more{i}")
    if copies:
        more = S.exp(S.BlockGrad(S.tile(hidden, reps=(1, copies))))
        hidden = S.slice_axis(S.Concat(hidden, more, dim=1), axis=1, begin=0, end=64)
    return S.FullyConnected(S.sigmoid(S.tanh(hidden)), num_hidden=4, name="fc1")


@pytest.fixture
def wasteful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans whose graphs compute the same bits, and hold some MB more."""
    plan_other_graphs(monkeypatch, lambda _: graph_of(network(128)))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def storage_of(caplog: pytest.LogCaptureFixture) -> tuple[float, float]:
    """MB of the original graph and of the plan's, as verify says them."""
    pattern = r"original graph; peak of MXNet's storage in a step: ([\d.]+) MB, without echo ([\d.]+) MB"
    ((became, own),) = re.findall(pattern, "\n".join(record.getMessage() for record in caplog.records))
    return float(own), float(became)


def stepped(symbol: S.Symbol) -> dict[str, Any]:
    executor = symbol.simple_bind(mx.cpu(), data=(64, 16))
    for name, array in sorted(executor.arg_dict.items()):
        array[:] = np.random.RandomState(len(name)).normal(0, 0.3, array.shape)
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((64, 4)))
    found = {"output": executor.outputs[0], **executor.grad_dict}
    return {name: array.asnumpy() for name, array in found.items()}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_an_executor_that_holds_more_is_found(wasteful: None, caplog: pytest.LogCaptureFixture) -> None:
    assert_equal(stepped(echo.optimize(network(), **OPTIONS)), stepped(network()))
    (said,) = warnings_of(caplog)
    assert "storage: " in said
    assert "Your original graph runs from here on" in said
    (folder,) = Path.cwd().glob("echo-verify-*")
    (difference,) = json.loads((folder / "about.json").read_text())["differences"]
    assert difference.startswith("storage: ")
    arrays = np.load(folder / "differences.npz")
    assert arrays["echo storage"] > arrays["own storage"] + 2 * LEAST
    again = subprocess.run([sys.executable, str(folder / "reproduce.py")], capture_output=True, text=True)
    assert again.returncode == 1, again.stderr
    assert again.stdout.startswith("storage: ")


def test_a_right_executor_holds_less(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "echo")
    stepped(echo.optimize(network(64), **OPTIONS))
    assert not warnings_of(caplog)
    own, became = storage_of(caplog)
    assert became < own


def block(copies: int = 0) -> gluon.SymbolBlock:
    found = gluon.SymbolBlock(network(copies), S.var("data", dtype="float32"))
    found.initialize(mx.init.Normal(0.1))
    return found


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}], ids=["dynamic", "static alloc"])
def test_a_block_that_holds_more_is_found(
    flags: dict[str, bool], wasteful: None, caplog: pytest.LogCaptureFixture
) -> None:
    called(echo.optimize(block(), **OPTIONS), flags)
    (said,) = warnings_of(caplog)
    assert "storage: " in said


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}], ids=["dynamic", "static alloc"])
def test_a_right_block_holds_no_more(flags: dict[str, bool], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "echo")
    called(echo.optimize(block(64), **OPTIONS), flags)
    assert not warnings_of(caplog)
    own, became = storage_of(caplog)
    assert became <= own


def called(net: gluon.SymbolBlock, flags: dict[str, bool]) -> None:
    net.hybridize(**flags)
    with autograd.record():
        loss = net(mx.nd.ones((64, 16))).sum()
    loss.backward()
    mx.nd.waitall()


# Counting --------------------------------------------------------------------------------------------------------


def arrays_of(*sizes: int) -> list[mx.nd.NDArray]:
    found = [mx.nd.zeros(size // 4) for size in sizes]
    mx.nd.waitall()
    return found


def test_the_most_at_once_is_counted() -> None:
    def run() -> None:
        arrays_of(3 * MB, 4 * MB)
        arrays_of(5 * MB)

    assert peak_storage(run, mx.cpu())[0] == 7 * MB
    assert peak_storage(lambda: None, mx.cpu())[0] == 0


def test_arrays_that_outlive_a_run_are_not_counted() -> None:
    def run() -> list[mx.nd.NDArray]:
        arrays_of(3 * MB)
        return arrays_of(4 * MB)

    most, (kept,) = peak_storage(run, mx.cpu())
    assert most == 3 * MB
    assert kept.asnumpy().sum() == 0


def test_the_count_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        peak_storage(lambda: 1 / 0, mx.cpu())
    assert peak_storage(lambda: arrays_of(MB) and None, mx.cpu())[0] == MB


def test_two_counters_at_once_are_refused() -> None:
    with pytest.raises(NativeError, match="another counter"):
        peak_storage(lambda: peak_storage(lambda: None, mx.cpu()), mx.cpu())
    assert peak_storage(lambda: arrays_of(MB) and None, mx.cpu())[0] == MB


def test_held_bytes_are_those_of_mxnets_profiler(tmp_path: Path) -> None:
    script = """
import json, sys
import mxnet as mx
from echo.verify.storage import peak_storage
from tests.verify.test_storage import network, stepped
stepped(network(64))  # temporary spaces are there
mx.profiler.set_config(profile_memory=True, filename=sys.argv[1])
mx.profiler.set_state("run")
print(peak_storage(lambda: stepped(network(64)) and None, mx.cpu())[0])
mx.profiler.set_state("stop")
mx.profiler.dump()
"""
    path = tmp_path / "profile.json"
    found = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=ROOT, env={**os.environ, "MXNET_CPU_TEMP_COPY": "1"},
        capture_output=True, text=True, check=True)  # fmt: skip
    waits = 4  # bytes, of an array of its own
    assert int(found.stdout) == counter_peak(json.loads(path.read_text())) - waits


def test_verify_without_storage_counter_compares_the_rest(
    wasteful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "echo")
    monkeypatch.setattr(held_module, "counting_blocker", lambda: "another layout")
    stepped(echo.optimize(network(), **OPTIONS))
    assert not warnings_of(caplog)
    assert "original graph; storage was not compared: NativeError: another layout" in caplog.text


# The tolerance ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "echo_holds", "more"),
    [(0, LEAST, False), (0, LEAST + 1, True), (1000 * MB, 1009 * MB, False), (1000 * MB, 1011 * MB, True)],
)
def test_a_hundredth_and_a_megabyte(own: int, echo_holds: int, more: bool) -> None:
    assert grows(own, echo_holds) == more


def test_hidden_bytes_of_the_users_operators_are_added() -> None:
    small, large = (lambda: arrays_of(MB) and None), (lambda: arrays_of(6 * MB) and None)
    assert growth(small, large, mx.cpu(), hidden=5 * MB) == (
        None,
        "peak of MXNet's storage in a step: 6.3 MB, without echo 6.3 MB",
    )
    assert str(growth(small, large, mx.cpu(), hidden=3 * MB)[0]) == "storage: 4.2 MB became 6.3 MB"
    assert growth(small, large, mx.cpu(), hidden=None) == (None, "storage was not compared")


def test_growth_by_other_threads_is_counted_again() -> None:
    runs = iter([9 * MB, MB, MB])
    own, noisy = lambda: arrays_of(2 * MB) and None, lambda: arrays_of(next(runs)) and None
    assert growth(own, noisy, mx.cpu(), hidden=0)[0] is None
    assert next(runs) == MB


def test_difference_names_values_shapes_and_types() -> None:
    one, other = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert str(Difference("output 0", 0.25, one, other)) == "output 0 by 2.5e-01 of its largest element"
    assert str(Difference("x", 0.0, one, other[:1])) == "x: float32(2, 3) became float32(1, 3)"
    assert str(Difference("x", 0.0, one, other.astype("float16"))) == "x: float32(2, 3) became float16(2, 3)"
