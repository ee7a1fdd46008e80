"""A small network with plan attributes on its nodes, and how often MXNet's passes clone these."""

from __future__ import annotations

import mxnet as mx
import mxnet.libinfo
import numpy as np

from echo import native
from echo.frontend.capture import bind_without_memory
from echo.frontend.symbols import graph_of, infer_binding, symbol_of
from echo.ir.op_spec import PLAN_ATTRIBUTE

LIBMXNET: str = mxnet.libinfo.find_lib_path()[0]
SHAPES = {"data": (8, 6)}


def forget() -> None:
    """The libraries are looked up again at their next use."""
    native._load.cache_clear()
    native.planner_library.cache_clear()


def network(width: int = 16) -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=width, name="fc1")
    hidden = mx.sym.tanh(hidden, name="tanh")
    scores = mx.sym.FullyConnected(hidden, num_hidden=4, name="fc2")
    return mx.sym.MakeLoss(mx.sym.sum(scores, name="sum"), name="loss")


def marked(symbol: mx.sym.Symbol, **outputs: str) -> mx.sym.Symbol:
    """The symbol with the plan attribute on these nodes."""
    graph = graph_of(symbol)
    numbers = {node.name: number for number, node in enumerate(graph.nodes)}
    return symbol_of(graph.with_attrs({numbers[name]: {PLAN_ATTRIBUTE: text} for name, text in outputs.items()}))


def bind(symbol: mx.sym.Symbol) -> mx.executor.Executor:
    return bind_without_memory(symbol, infer_binding(symbol, SHAPES), mx.cpu())


def clones(symbol: mx.sym.Symbol) -> int:
    return bind(symbol).debug_str().count("_echo\nInputs:")


def train(symbol: mx.sym.Symbol) -> bytes:
    """The gradient of a step, to the last bit."""
    executor = symbol.simple_bind(mx.cpu(), **SHAPES)
    generator = np.random.RandomState(0)
    for array in executor.arg_arrays:
        array[:] = generator.normal(0, 1, array.shape)
    executor.forward(is_train=True)
    executor.backward()
    return bytes(executor.grad_dict["fc1_weight"].asnumpy().tobytes())
