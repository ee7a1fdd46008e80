"""Transparent mode: programs that know nothing of echo train the same, in less memory."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest
from mxnet.symbol import Symbol

import echo
from benchmarks.models import SMALL, random_values
from echo.frontend.capture import planned_megabytes
from echo.passes.analysis import Differentiate
from tests.support.training import assert_close, assert_same

ROOT = Path(__file__).resolve().parents[2]
MODEL = SMALL["nmt_large"]()


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    echo.disable()


def executor(symbol: mx.sym.Symbol = MODEL.symbol) -> mx.executor.Executor:
    bound = symbol.simple_bind(mx.cpu(), grad_req=MODEL.grad_req(), **MODEL.shapes)
    for name, value in random_values(MODEL).items():
        bound.arg_dict[name][:] = value
    return bound


def trained_module() -> dict[str, np.ndarray]:
    """Three steps of a Module, as a user writes them; its weights."""
    mx.random.seed(1)
    values = random_values(MODEL)
    inputs = [name for name in MODEL.shapes if "label" not in name]
    labels = [name for name in MODEL.shapes if "label" in name]
    module = mx.mod.Module(MODEL.symbol, data_names=inputs, label_names=labels)
    shapes = list(MODEL.shapes.items())
    module.bind([item for item in shapes if item[0] in inputs], [item for item in shapes if item[0] in labels])
    weights = {name: mx.nd.array(value) for name, value in values.items() if name not in MODEL.shapes}
    module.init_params(arg_params=weights, initializer=None)
    module.init_optimizer(optimizer_params={"learning_rate": 0.1})
    data, label = ([mx.nd.array(values[name]) for name in names] for names in (inputs, labels))
    batch = mx.io.DataBatch(data, label)
    for _ in range(3):
        module.forward_backward(batch)
        module.update()
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


@pytest.mark.usefixtures("cheap_planning")
def test_module_trains_to_the_same_weights() -> None:
    expected = trained_module()
    with echo.enable(max_overhead=None, fuse=False):
        assert_same(trained_module(), expected)
    with echo.enable(max_overhead=None):
        fused = trained_module()
    assert_close(fused, expected)
    assert any((fused[name] != value).any() for name, value in expected.items()), "nothing is fused"


@pytest.mark.usefixtures("cheap_planning")
def test_plain_symbols_need_less_and_show_themselves() -> None:
    before = planned_megabytes(executor())
    echo.enable(max_overhead=None)
    bound = executor()
    assert planned_megabytes(bound) <= before / 2
    assert bound._symbol.tojson() == MODEL.symbol.tojson()
    echo.disable()
    assert planned_megabytes(executor()) == before


@pytest.mark.usefixtures("cheap_planning")
def test_optimized_symbols_are_planned_once() -> None:
    optimized = echo.optimize(MODEL.symbol, max_overhead=None)
    echo.enable(max_overhead=0.0)
    executor(optimized)
    assert len(optimized.plans) == 1
    assert not optimized.plans[0].changes_nothing
    assert echo.plan(MODEL.symbol, max_overhead=None, **MODEL.shapes) == optimized.plans[0]


def test_enable_and_disable_leave_mxnet_as_it_was() -> None:
    before = Symbol.simple_bind, Symbol.bind
    with echo.enable():
        assert Symbol.simple_bind is not before[0]
        with echo.enable(policy="echo"):
            pass
        assert Symbol.simple_bind is not before[0], "the outer one is still on"
    assert (Symbol.simple_bind, Symbol.bind) == before
    echo.disable()
    assert (Symbol.simple_bind, Symbol.bind) == before


def test_foreign_wrapper_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    echo.enable()
    ours = Symbol.simple_bind
    monkeypatch.setattr(Symbol, "simple_bind", lambda symbol, *args, **kwargs: ours(symbol, *args, **kwargs))
    theirs = Symbol.simple_bind
    echo.disable()
    assert Symbol.simple_bind is theirs
    assert executor().outputs, "without options the wrapper below only passes on"
    monkeypatch.undo()
    Symbol.simple_bind = ours
    echo.disable()


@pytest.mark.parametrize("error", [RuntimeError("surprise"), echo.GraphError("surprise")])
def test_an_error_inside_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Differentiate, "run", fail)
    echo.enable()
    with caplog.at_level(logging.WARNING, "echo"):
        assert executor().outputs
    assert len(caplog.records) == 1
    assert "surprise" in caplog.text
    echo.enable(strict=True)
    with pytest.raises(echo.EchoError, match="surprise"):
        executor()


@pytest.mark.usefixtures("cheap_planning")
def test_a_budget_out_of_reach_is_come_near_to(caplog: pytest.LogCaptureFixture) -> None:
    model = SMALL["lm"]()
    before = planned_megabytes(model.symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes))
    echo.enable(memory_budget=1000)
    with caplog.at_level(logging.WARNING, "echo"):
        bound = model.symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes)
    assert planned_megabytes(bound) < before
    assert "cannot be met" in caplog.text
    assert "The smallest plan is used" in caplog.text


def test_invalid_shapes_raise_mxnets_error() -> None:
    echo.enable()
    with pytest.raises(RuntimeError, match="simple_bind error"):
        MODEL.symbol.simple_bind(mx.cpu(), source=(3, 4), target=(5, 6))


def test_inference_is_left_alone() -> None:
    before = planned_megabytes(MODEL.symbol.simple_bind(mx.cpu(), grad_req="null", **MODEL.shapes))
    echo.enable(max_overhead=None)
    assert planned_megabytes(MODEL.symbol.simple_bind(mx.cpu(), grad_req="null", **MODEL.shapes)) == before


# The environment -----------------------------------------------------------------------------------------------


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.runtime.test_transparent import executor, planned_megabytes
import hashlib
bound = executor()
bound.forward(is_train=True)
bound.backward()
weights = hashlib.sha256(b"".join(array.asnumpy().tobytes() for array in bound.grad_arrays if array is not None))
print(weights.hexdigest(), planned_megabytes(bound))
"""


def run(script: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=240, check=True,
        cwd=tmp_path, env={**values, "ECHO_CACHE_DIR": str(tmp_path), **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_a_program_that_knows_nothing_of_echo(tmp_path: Path) -> None:
    script = SCRIPT.format(root=str(ROOT))
    stock = run(script, tmp_path).stdout.split()
    for fuse in "01":
        found = run(script, tmp_path, ECHO="1", ECHO_MAX_OVERHEAD="none", ECHO_LOG="INFO", ECHO_FUSE=fuse)
        assert (found.stdout.split()[0] == stock[0]) == (fuse == "0"), "gradients keep their bits without fusion alone"
        assert int(found.stdout.split()[1]) <= int(stock[1]) / 2
        assert "MB planned" in found.stderr


def test_programs_without_mxnet_never_see_echo(tmp_path: Path) -> None:
    script = "import sys, json; print(sorted(name for name in sys.modules if name.split('.')[0] in ('echo', 'mxnet')))"
    assert run(script, tmp_path, ECHO="1").stdout.strip() == "[]"
    unset = "import sys; print('_echo_startup' in sys.modules)"
    assert run(unset, tmp_path).stdout.strip() == "False"


def test_nonsense_is_one_line(tmp_path: Path) -> None:
    done = run("import mxnet; print('fine')", tmp_path, ECHO="banana")
    assert done.stdout.strip() == "fine"
    lines = [line for line in done.stderr.splitlines() if "echo" in line]
    assert len(lines) == 1
    assert "banana" in lines[0]


def test_disable_puts_the_cached_op_back_and_optimized_blocks_still_plan() -> None:
    stock = mx.nd.CachedOp
    with echo.enable():
        assert mx.nd.CachedOp is not stock
    assert mx.nd.CachedOp is stock
    net = mx.gluon.nn.HybridSequential()
    for _ in range(3):
        net.add(mx.gluon.nn.Dense(64), mx.gluon.nn.Activation("tanh"), mx.gluon.nn.LayerNorm())
    net.initialize()
    net.hybridize()
    echo.optimize(net, max_overhead=None)
    with mx.autograd.record():
        net(mx.nd.ones((128, 16)))
    assert len(net._cached_op.plans) == 1
