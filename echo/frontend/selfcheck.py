"""Does the native hook read this MXNet binary right? A tiny graph is bound, read back and compared."""

from __future__ import annotations

import functools

import mxnet as mx
import numpy as np

from echo import native
from echo.errors import NativeError
from echo.frontend.backend_lines import silenced
from echo.frontend.capture import bind_without_memory, planned_megabytes
from echo.frontend.fallback_lines import unlogged
from echo.frontend.symbols import graph_of, infer_binding, symbol_from, symbol_of
from echo.ir.graph import VARIABLE, Entry, Node
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, GradientRule, own_inputs
from echo.plans.decisions import mark
from echo.system.threads import own_binds

_EXPECTED = (
    ("null", "data", [[512, 512]]),
    ("null", "a_weight", [[512, 512]]),
    ("FullyConnected", "a", [[512, 512]]),
    ("Activation", "b", [[512, 512]]),
    ("null", "c_weight", [[2, 512]]),
    ("FullyConnected", "c", [[512, 2]]),
    ("null", "label", [[512, 2]]),
    ("LinearRegressionOutput", "loss", [[512, 2]]),
)


def _symbol() -> mx.sym.Symbol:
    return symbol_from(
        Node(VARIABLE, "data"),
        Node(VARIABLE, "a_weight"),
        Node("FullyConnected", "a", (Entry(0), Entry(1)), attrs={"num_hidden": "512", "no_bias": "True"}),
        Node("Activation", "b", (Entry(2),), attrs={"act_type": "tanh"}),
        Node(VARIABLE, "c_weight"),
        Node("FullyConnected", "c", (Entry(3), Entry(4)), attrs={"num_hidden": "2", "no_bias": "True"}),
        Node(VARIABLE, "label"),
        Node("LinearRegressionOutput", "loss", (Entry(5), Entry(6))),
    )


def check_hook() -> None:
    """Raises `NativeError` where the hook reads or does something else than MXNet itself says."""
    symbol = _symbol()
    binding = infer_binding(symbol, {"data": (512, 512)})
    with native.capture() as caught:
        executor = bind_without_memory(symbol, binding, mx.cpu())
    if caught.graph is None:
        raise NativeError("the hook does not fit this MXNet: it was not called at a bind")
    read = tuple((node["op"], node["name"], node["shapes"]) for node in caught.graph["nodes"][: len(_EXPECTED)])
    if read != _EXPECTED:
        raise NativeError(f"the hook does not fit this MXNet: expected to read {_EXPECTED}, got {read}")
    megabytes = planned_megabytes(executor)
    if caught.graph["allocated_bytes"] >> 20 != megabytes:
        read_bytes = caught.graph["allocated_bytes"]
        raise NativeError(f"the hook does not fit this MXNet: expected {megabytes} MB planned, got {read_bytes} bytes")
    number = next(index for index, node in enumerate(graph_of(symbol).nodes) if node.name == "b")
    planned = bind_without_memory(symbol_of(mark(graph_of(symbol), {number: [0]}, hook=True)), binding, mx.cpu())
    if "Name=b_echo\n" not in planned.debug_str():
        raise NativeError("the hook does not fit this MXNet: a planned node was not recomputed")


@functools.lru_cache(maxsize=None)
def onednn_activations() -> bool:
    """Whether oneDNN computes gradients of activations here, as `echo.ir.gradient_rules` knows it.

    The gradient of tanh then does not read the output, and that of sigmoid has the bits of MXNet's own gradient, which
    reads the output alone. It depends on the build and on ``MXNET_MKLDNN_ENABLED``, so it is tried, with the hook.
    """
    from_input = GradientRule("_backward_Activation", "_backward_Activation", own_inputs(0, 0, 2))
    from_output = GradientRule("_backward_Activation", "_backward_sigmoid", own_inputs(0, 1))
    return _is_equal("tanh", from_input) and _is_equal("sigmoid", from_output)


def _is_equal(act_type: str, rule: GradientRule) -> bool:
    symbol = symbol_from(Node(VARIABLE, "data"), Node("Activation", "b", (Entry(0),), attrs={"act_type": act_type}))
    exchanged = graph_of(symbol).with_attrs({1: {GRADIENT_ATTRIBUTE: rule.text}})
    silenced()
    gradients = []
    ctx = mx.cpu()  # blocks run in the context of their data, which need not be this one
    for bound in (symbol, symbol_of(exchanged)):
        data = mx.nd.array(np.arange(-12, 12, 1 / 64), ctx)
        with own_binds(), unlogged():
            executor = mx.sym.Symbol.bind(bound, ctx, [data], [mx.nd.zeros(data.shape, ctx)])
        executor.forward(is_train=True)
        executor.backward([mx.nd.array(np.arange(1, 1 + data.size) / 7, ctx)])
        gradients.append(executor.grad_arrays[0].asnumpy().tobytes())
    return bool(gradients[0] == gradients[1])
