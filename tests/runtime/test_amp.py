"""Mixed precision: the casts of MXNet's AMP are part of the original graph, and `amp.init` does not reach into echo."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.contrib import amp

import echo
from echo.frontend import install
from echo.frontend.derived_graphs import _facts
from echo.frontend.plan_key import plan_key
from echo.frontend.symbols import Binding, graph_of, text_of, type_name
from tests.support.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPES = {"data": (8, 20), "softmax_label": (8,)}
TYPES = ("float16", "bfloat16")
KINDS = {"float16": np.dtype("float16"), "bfloat16": amp.amp.bfloat16}
DROPPED = {"amp_cast", "amp_multicast"}


def widest(F: Any, low: Any, high: Any, dtype: str) -> Any:
    """Both in the wider type. On the CPU ``amp_multicast`` knows no float16, nor do products."""
    if dtype == "bfloat16":
        return F.amp_multicast(low, high, num_outputs=2)
    return F.amp_cast(low, dtype="float32"), high


def network(dtype: str) -> mx.sym.Symbol:
    """Some elementwise operators in the lower precision."""
    with mx.name.NameManager():
        hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=24, name="fc0")
        low = mx.sym.sigmoid(mx.sym.tanh(mx.sym.amp_cast(hidden, dtype=KINDS[dtype])) * 3)
        low, high = widest(mx.sym, low, hidden, dtype)
        hidden = mx.sym.Dropout(mx.sym.exp(low) + high, p=0.3, name="drop")
        hidden = mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=5, name="fc1")
        return mx.sym.SoftmaxOutput(hidden, mx.sym.var("softmax_label"), name="softmax")


def converted(dtype: str) -> mx.sym.Symbol:
    """What AMP makes of a convolutional network."""
    with mx.name.NameManager():
        hidden = mx.sym.var("data")
        for i in range(3):
            hidden = mx.sym.Convolution(hidden, num_filter=8, kernel=(3, 3), pad=(1, 1), name=f"conv{i}")
            hidden = mx.sym.BatchNorm(hidden, name=f"norm{i}")
            hidden = mx.sym.Dropout(mx.sym.Activation(hidden, act_type="relu"), p=0.3)
        other = mx.sym.Deconvolution(hidden, num_filter=8, kernel=(3, 3), pad=(1, 1), name="deconv")
        hidden = mx.sym.Concat(hidden, mx.sym.exp(other * 0.1), dim=1)
        hidden = mx.sym.mean(mx.sym.tanh(hidden) * mx.sym.sigmoid(hidden), axis=(2, 3))
        symbol = mx.sym.SoftmaxOutput(hidden, mx.sym.var("softmax_label"), name="softmax")
    return amp.convert_symbol(symbol, target_dtype=dtype)


def operators(symbol: mx.sym.Symbol) -> set[str]:
    return {node["op"] for node in json.loads(text_of(symbol))["nodes"]}


def trained(symbol: mx.sym.Symbol, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Outputs, gradients, auxiliary states and the random stream after two steps."""
    requests = {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=requests, **shapes)
    generator = np.random.RandomState(0)
    for name, array in executor.arg_dict.items():
        drawn = generator.randint(0, 4, array.shape) if "label" in name else generator.normal(0, 0.3, array.shape)
        array[:] = mx.nd.array(drawn).astype(array.dtype)
    mx.random.seed(3)
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward()
    mx.nd.waitall()
    named = {"outputs": executor.outputs, "gradients": executor.grad_arrays, "states": executor.aux_arrays}
    found = {f"{name} {i}": array.astype("float32").asnumpy()
             for name, arrays in named.items() for i, array in enumerate(arrays) if array is not None}  # fmt: skip
    found["random stream"] = mx.nd.random.uniform(shape=(16,)).asnumpy()
    return found


def needs_convolutions_of_bfloat16() -> None:
    """Skips a test where MXNet itself has none: those of oneDNN take AVX-512."""
    data, weight = (mx.nd.ones(shape).astype(KINDS["bfloat16"]) for shape in ((1, 8, 8, 8), (8, 8, 3, 3)))
    try:
        mx.nd.Convolution(data, weight, num_filter=8, kernel=(3, 3), no_bias=True).wait_to_read()
    except mx.MXNetError as error:
        pytest.skip(f"MXNet's convolution of bfloat16 does not run on this processor: {str(error).splitlines()[-1]}")


@pytest.mark.parametrize("options", [{}, {"policy": "none"}, {"max_overhead": None}])
@pytest.mark.parametrize(("build", "dtype"), [(network, "float16"), (network, "bfloat16"), (converted, "bfloat16")])
def test_symbols_train_in_the_types_of_the_user(build: Any, dtype: str, options: dict[str, Any]) -> None:
    if build is converted:
        needs_convolutions_of_bfloat16()
    symbol = build(dtype)
    shapes = SHAPES if build is network else {"data": (4, 3, 8, 8), "softmax_label": (4,)}
    optimized = echo.optimize(symbol, fuse=False, strict=True, **options)
    found = trained(optimized, shapes)
    assert_same(found, trained(symbol, shapes))
    (plan,) = optimized.plans
    assert plan.key.operators.keys() & DROPPED
    assert not plan.changes_nothing or options.get("policy") == "none"
    with pytest.raises(AssertionError):  # what MXNet saves by default is another network
        assert_same(found, trained(mx.sym.load_json(symbol.tojson()), shapes))


@pytest.mark.parametrize("dtype", TYPES)
def test_fused_operators_next_to_casts(dtype: str) -> None:
    cell = mx.rnn.LSTMCell(6, prefix="lstm_")
    outputs, _ = cell.unroll(9, mx.sym.var("data"), layout="NTC", merge_outputs=True)
    kind = KINDS[dtype]
    low = mx.sym.relu(mx.sym.sigmoid(mx.sym.amp_cast(mx.sym.LayerNorm(outputs, name="norm"), dtype=kind)) * 3)
    symbol = mx.sym.Group([mx.sym.Dropout(mx.sym.amp_cast(low, dtype="float32"), p=0.4), outputs])
    shapes = {"data": (3, 9, 7)}
    optimized = echo.optimize(symbol, strict=True)

    def run(bound: mx.sym.Symbol) -> list[Any]:
        generator = np.random.RandomState(0)
        executor = bound.simple_bind(mx.cpu(), **shapes)
        for array in executor.arg_arrays:
            array[:] = generator.normal(0, 0.3, array.shape)
        mx.random.seed(3)
        executor.forward(is_train=True)
        executor.backward([mx.nd.array(generator.normal(0, 1, out.shape)) for out in executor.outputs])
        return [array.asnumpy() for array in [*executor.outputs, *executor.grad_arrays]]

    found, stock = run(optimized), run(symbol)
    assert optimized.plans[-1].fused
    for mine, theirs in zip(found, stock):  # where the casts are gone, the difference is that of the lower type
        assert np.abs(mine - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("dtype", TYPES)
def test_saved_symbol_keeps_the_users_casts(dtype: str) -> None:
    symbol = network(dtype)
    optimized = echo.optimize(symbol, fuse=False, **SHAPES)
    for keeps in (True, False):
        assert optimized.tojson(remove_amp_cast=keeps) == symbol.tojson(remove_amp_cast=keeps)
    assert text_of(pickle.loads(pickle.dumps(optimized))) == text_of(symbol)
    assert operators(optimized) & DROPPED


def test_types_have_the_names_of_mxnet() -> None:
    assert [type_name(kind) for kind in ("float32", *KINDS.values())] == ["float32", *KINDS]
    arrays = [mx.nd.zeros((2,), dtype=kind) for kind in KINDS.values()]
    bindings = [Binding.of_arrays([array], [], ["write"]) for array in arrays]
    keys = [plan_key(graph_of(mx.sym.var("x")), binding, "cpu") for binding in bindings]
    assert [each.arguments[0].dtype for each in keys] == [*KINDS]
    assert len({binding.key for binding in bindings}) == 2


def test_transparent_mode_keeps_the_casts() -> None:
    generator = np.random.RandomState(1)
    values, labels = generator.normal(0, 1, (24, 20)), generator.randint(0, 5, 24)

    def fit() -> dict[str, Any]:
        with mx.name.NameManager():
            module = mx.mod.Module(network("float16"))
        mx.random.seed(5)
        np.random.seed(5)
        data = mx.io.NDArrayIter(values.astype("float32"), labels.astype("float32"), 8)
        module.fit(data, num_epoch=2, initializer=mx.init.Uniform(0.5))
        mx.nd.waitall()
        return {name: array.asnumpy() for name, array in module.get_params()[0].items()}

    stock = fit()
    with echo.enable(fuse=False, max_overhead=None):
        assert_same(fit(), stock)


class Block(gluon.HybridBlock):  # type: ignore[misc]
    """Elementwise operators in a lower precision between two layers."""

    def __init__(self, dtype: str) -> None:
        super().__init__(prefix="block_")
        self._dtype = dtype
        with self.name_scope():
            self.first, self.second = gluon.nn.Dense(24, in_units=20), gluon.nn.Dense(5, in_units=24)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = self.first(x)
        low = F.sigmoid(F.tanh(F.amp_cast(hidden, dtype=KINDS[self._dtype])) * 3)
        low, high = widest(F, low, hidden, self._dtype)
        wide = F.Dropout(F.exp(low) * high, p=0.3)
        for _ in range(3):
            wide = F.tanh(F.exp(F.sigmoid(wide)) * wide)
        return self.second(wide)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_blocks_train_in_the_types_of_the_user(dtype: str, static: bool) -> None:
    def run(optimized: bool) -> dict[str, Any]:
        mx.random.seed(2)
        net = Block(dtype)
        net.initialize(mx.init.Uniform(0.5))
        net.hybridize(static_alloc=static)
        if optimized:
            echo.optimize(net, fuse=False, max_overhead=None, strict=True)
        data = mx.nd.array(np.random.RandomState(1).normal(size=(8, 20)))
        for _ in range(2):
            with autograd.record():
                out = net(data)
            out.backward()
        if optimized:
            assert all(not plan.changes_nothing for plan in net._cached_op.plans.values())
        gradients = {name: param.grad().asnumpy() for name, param in net.collect_params().items()}
        return {"output": out.asnumpy(), "stream": mx.nd.random.uniform(shape=(4,)).asnumpy(), **gradients}

    assert_same(run(True), run(False))


def test_own_symbols_need_no_functions_of_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs replace ``mx.sym.*`` and ``mx.nd.*``, as `amp.init` does, and open scopes of attributes and names."""

    def replaced(*_: Any, **__: Any) -> Any:
        raise AssertionError("a function of the program's")

    for module in (mx.sym, mx.sym.op, mx.nd, mx.nd.op):
        for name in ("FullyConnected", "Activation", "LinearRegressionOutput", "sigmoid", "var", "arange"):
            monkeypatch.setattr(module, name, replaced, raising=False)
    found = []
    with mx.AttrScope(__force_mirroring__="True", ctx_group="dev1"), mx.name.Prefix("own_"):
        install.check_hook()
        for known in (install.onednn_activations, _facts):
            found.append(known.__wrapped__(*(("_backward_sigmoid",) if known is _facts else ())))
    assert found == [install.onednn_activations(), _facts("_backward_sigmoid")]


PROGRAM = """
import sys
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp

lists = (["Activation", "sigmoid"], None, ["Convolution", "mean"])  # MXNet has no products in float16 on the CPU
amp.init(sys.argv[1], *(lists if sys.argv[1] == "float16" else ()))
mx.random.seed(0)
net = gluon.nn.HybridSequential()
for _ in range(4):
    net.add(gluon.nn.Conv2D(8, 3, padding=1), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
net.add(gluon.nn.Dropout(0.3), gluon.nn.GlobalAvgPool2D(), gluon.nn.Flatten())
net.initialize(mx.init.Uniform(0.3))
net.hybridize(static_alloc=sys.argv[2] == "static")
data = mx.nd.array(np.random.RandomState(1).normal(size=(4, 3, 12, 12)))
for _ in range(2):
    with autograd.record():
        loss = (net(data).astype("float32") ** 2).mean()
    loss.backward()
symbol = mx.sym.Convolution(mx.sym.var("data"), num_filter=8, kernel=(3, 3), name="c")
symbol = mx.sym.exp(mx.sym.mean(mx.sym.tanh(symbol) * mx.sym.sigmoid(symbol), axis=(2, 3)))
executor = symbol.simple_bind(mx.cpu(), data=(4, 3, 12, 12))
for array in executor.arg_arrays:
    array[:] = 0.5
executor.forward(is_train=True)
executor.backward([mx.nd.ones(out.shape).astype(out.dtype) for out in executor.outputs])
mx.nd.waitall()
arrays = [p.grad() for p in net.collect_params().values() if p.grad_req != "null"] + executor.grad_arrays
np.savez(sys.argv[3], loss.asnumpy(), mx.nd.random.uniform(shape=(8,)).asnumpy(),
         *[array.astype("float32").asnumpy() for array in arrays])
"""


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", TYPES)
def test_programs_that_call_amp_init(dtype: str, runner: str, tmp_path: Path) -> None:
    if dtype == "bfloat16":
        needs_convolutions_of_bfloat16()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    own = {"ECHO_FUSE": "0", "ECHO_LOG": "DEBUG", "ECHO_CACHE_DIR": str(tmp_path), "ECHO_MAX_OVERHEAD": "none"}
    if dtype == "float16":
        own["MXNET_MKLDNN_ENABLED"] = "0"  # oneDNN knows no float16
    results = []
    for on in "01":
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, dtype, runner, str(tmp_path / on)],
            env={**clean, **own, "ECHO": on}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with np.load(tmp_path / f"{on}.npz") as file:
            results.append(dict(file))
    assert_same(results[1], results[0])
    assert "echo: " in done.stderr
    assert "WARNING:echo" not in done.stderr
    assert "does not fit" not in done.stderr
    assert "recomputed" in done.stderr
