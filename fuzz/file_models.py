"""Small models with all that plans are delicate about, and how they are trained by each runner."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Mapping

import mxnet as mx
import numpy as np
from mxnet import autograd

import echo
from echo.frontend.symbols import graph_of
from echo.ir.graph import Graph
from echo.runtime.cached_op import StockCachedOp
from echo.system.threads import own_binds

RUNNERS: Mapping[str, Mapping[str, Any]] = {
    "executor": {},
    "dynamic": {"inline_limit": 0},
    "static": {"inline_limit": 0, "static_alloc": True, "static_shape": True},
}
_CLOSE = 1e-4  # of the largest element, where operators are fused
Record = Mapping[str, Any]


def _dense() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=24, name=f"fc{layer}")
        hidden = mx.sym.Activation(hidden, act_type=("tanh", "sigmoid", "softrelu")[layer], name=f"act{layer}")
        hidden = mx.sym.Dropout(hidden, p=0.4, name=f"drop{layer}")
        hidden = mx.sym.sigmoid(hidden, name=f"sigmoid{layer}") * hidden
    hidden = mx.sym.Dropout(mx.sym.LayerNorm(hidden, name="norm"), p=0.0, name="no_drop")
    hidden = mx.sym.Dropout(mx.sym.exp(hidden), axes=(0,), name="drop_rows")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=5), mx.sym.var("label"), name="softmax")


def _steps() -> mx.sym.Symbol:
    """An LSTM, unrolled, with equal nodes that MXNet merges."""
    weights = {name: mx.sym.var(name) for name in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")}
    data, state, cell = mx.sym.var("data"), None, None
    for step in range(3):
        gates = mx.sym.FullyConnected(mx.sym.tanh(data * (1.0 + step)), weights["i2h_weight"], weights["i2h_bias"],
                                      num_hidden=48, name=f"i2h{step}")  # fmt: skip
        if state is not None:
            gates = gates + mx.sym.FullyConnected(state, weights["h2h_weight"], weights["h2h_bias"], num_hidden=48)
        parts = mx.sym.SliceChannel(gates, num_outputs=4, name=f"parts{step}")
        new = mx.sym.sigmoid(parts[0]) * mx.sym.tanh(parts[1])
        cell = new if cell is None else mx.sym.sigmoid(parts[2]) * cell + new
        state = mx.sym.sigmoid(parts[3]) * mx.sym.tanh(cell)
    twice = mx.sym.Concat(mx.sym.exp(state), state, dim=1) * mx.sym.Concat(mx.sym.exp(state), state, dim=1)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(twice, num_hidden=5), mx.sym.var("label"), name="softmax")


def _images() -> mx.sym.Symbol:
    hidden = mx.sym.Reshape(mx.sym.var("data"), shape=(-1, 1, 4, 4))
    hidden = mx.sym.Convolution(hidden, num_filter=8, kernel=(3, 3), pad=(1, 1), name="conv0")
    branch = mx.sym.Activation(mx.sym.BatchNorm(hidden, fix_gamma=False, name="bn0"), act_type="relu", name="relu0")
    branch = mx.sym.Dropout(branch, p=0.3, name="drop0")
    branch = mx.sym.Convolution(branch, num_filter=8, kernel=(3, 3), pad=(1, 1), name="conv1")
    hidden = mx.sym.Activation(mx.sym.BatchNorm(hidden + branch, name="bn1"), act_type="relu", name="relu1")
    hidden = mx.sym.Pooling(mx.sym.LeakyReLU(hidden, act_type="elu"), pool_type="max", kernel=(2, 2), stride=(2, 2))
    both = [mx.sym.Convolution(hidden, num_filter=6, kernel=(1, 1), name=f"conv{layer}") for layer in (2, 3)]
    hidden = mx.sym.Flatten(mx.sym.Concat(*both, mx.sym.InstanceNorm(hidden, name="in0"), dim=1))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=5), mx.sym.var("label"), name="softmax")


def _keepers() -> mx.sym.Symbol:
    """Operators that read what they were handed, in whatever way, and many readers of one map."""
    shared = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc"), name="shared")
    sequence = mx.sym.exp(mx.sym.Reshape(shared, shape=(2, -1, 8)))
    rnn = mx.sym.RNN(sequence, mx.sym.var("parameters"), mx.sym.var("state"), state_size=6, num_layers=1, mode="gru",
                     name="rnn")  # fmt: skip
    prelu = mx.sym.LeakyReLU(mx.sym.square(shared), act_type="prelu", name="prelu")
    parts = [mx.sym.sum(mx.sym.sigmoid(shared * (1.0 + step)), axis=1) for step in range(9)]
    total = mx.sym.sum(mx.sym.square(rnn)) + mx.sym.sum(mx.sym.log_softmax(prelu)) + mx.sym.sum(mx.sym.add_n(*parts))
    return mx.sym.Group([mx.sym.MakeLoss(total, name="loss"), mx.sym.exp(shared, name="head")])


MODELS: Mapping[str, tuple[Callable[[], mx.sym.Symbol], Mapping[str, tuple[int, ...]]]] = {
    "dense": (_dense, {"data": (8, 20), "label": (8,)}),
    "steps": (_steps, {"data": (6, 10), "label": (6,)}),
    "images": (_images, {"data": (4, 16), "label": (4,)}),
    "keepers": (_keepers, {"data": (4, 10)}),
}


@lru_cache(maxsize=None)
def symbol(model: str) -> mx.sym.Symbol:
    """The symbol of a model, under the same names in every process."""
    with mx.name.NameManager():
        return MODELS[model][0]()


@lru_cache(maxsize=None)
def graph(model: str) -> Graph:
    """The graph that is planned."""
    return graph_of(symbol(model))


@lru_cache(maxsize=None)
def _values(model: str) -> Mapping[str, Any]:
    generator, network = np.random.RandomState(0), symbol(model)
    shapes, _, states = network.infer_shape(**MODELS[model][1])
    names = [*network.list_arguments(), *network.list_auxiliary_states()]
    return {
        name: generator.randint(0, 5, shape) if name == "label" else generator.normal(0, 0.4, shape)
        for name, shape in zip(names, [*shapes, *states])
    }


def train(model: str, runner: str, options: Mapping[str, Any] | None, plans: list[Any] | None = None) -> Record:
    """Two steps: everything that comes out. Without options by stock MXNet; ``plans`` receives those of echo.

    Raises:
        EchoError: the options cannot be met.
    """
    symbol_, found = symbol(model), plans if plans is not None else []
    if runner == "executor":
        return _executor(model, symbol_ if options is None else echo.optimize(symbol_, strict=True, **options), found)
    flags = list(RUNNERS[runner].items())
    if options is None:
        with own_binds():
            return _cached(model, StockCachedOp(symbol_, flags), found)
    with echo.enable(strict=True, **options):
        return _cached(model, mx.nd.CachedOp(symbol_, flags), found)


def _executor(model: str, network: mx.sym.Symbol, plans: list[Any]) -> Record:
    requests = {name: "null" if name == "label" else "write" for name in network.list_arguments()}
    executor = network.simple_bind(mx.cpu(), grad_req=requests, **MODELS[model][1])
    plans += getattr(network, "plans", [])
    for name, array in (*executor.arg_dict.items(), *executor.aux_dict.items()):
        array[:] = _values(model)[name]
    seen: dict[str, Any] = {}
    for step in range(2):
        mx.random.seed(step)
        executor.forward(is_train=True)
        executor.backward([mx.nd.ones(output.shape) / 3 for output in executor.outputs])
        mx.nd.waitall()
        groups = {"output": dict(enumerate(executor.outputs)), "gradient": executor.grad_dict, "aux": executor.aux_dict}
        _note(seen, step, groups)
        for name, gradient in executor.grad_dict.items():
            if gradient is not None:
                executor.arg_dict[name][:] -= 0.05 * gradient
    return seen


def _cached(model: str, op: Any, plans: list[Any]) -> Record:
    network = symbol(model)
    arrays = {name: mx.nd.array(value) for name, value in _values(model).items()}
    for name in network.list_arguments():
        arrays[name].attach_grad()
    seen: dict[str, Any] = {}
    for step in range(2):
        mx.random.seed(step)
        with autograd.record():
            outputs = op(*(arrays[name] for name in network.list_inputs()))
        outputs = outputs if isinstance(outputs, list) else [outputs]
        autograd.backward(outputs, [mx.nd.ones(output.shape) / 3 for output in outputs])
        mx.nd.waitall()
        gradients = {name: arrays[name].grad for name in network.list_arguments() if name != "label"}
        states = {name: arrays[name] for name in network.list_auxiliary_states()}
        _note(seen, step, {"output": dict(enumerate(outputs)), "gradient": gradients, "aux": states})
        for name, gradient in gradients.items():
            arrays[name][:] -= 0.05 * gradient
    plans += getattr(op, "plans", {}).values()
    return seen


def _note(seen: dict[str, Any], step: int, groups: Mapping[str, Mapping[Any, Any]]) -> None:
    for kind, group in groups.items():
        for name, array in group.items():
            if array is not None:
                seen[f"step {step}: {kind} {name}"] = array.asnumpy()
    seen[f"step {step}: random stream"] = mx.nd.random.uniform(shape=(8,)).asnumpy()


def differs(got: Record, expected: Record, close: bool) -> str:
    """The arrays that are not what stock MXNet computes; ``close``: beyond what fused operators may change."""
    wrong = {name: _distance(got.get(name), value) for name, value in expected.items()}
    bad = {name: far for name, far in wrong.items() if far is not None and not (close and far < _CLOSE)}
    few = ", ".join(f"{name} by {far:.1e}" for name, far in list(bad.items())[:3])
    return f"{len(bad)} of {len(expected)} arrays differ: {few}" if bad else ""


def _distance(got: Any, expected: Any) -> float | None:
    """None for the same bits, else the difference as a part of the largest element."""
    if got is None or (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return float("inf")
    if got.tobytes() == expected.tobytes():
        return None
    far = float(np.abs(got - expected).max()) / max(float(np.abs(expected).max()), 1e-30)
    return far if far == far else float("inf")
