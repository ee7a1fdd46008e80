"""What is installed into MXNet: the kernels as its extension library, and the native hook, with its self-check."""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
from typing import Any, Mapping

import mxnet as mx
import mxnet.libinfo
import numpy as np
from mxnet.base import _LIB, c_str, check_call

from echo import compat, native
from echo.errors import EchoError, NativeError, UnsupportedError
from echo.frontend.capture import bind_without_memory, planned_megabytes
from echo.frontend.mxnet_settings import silenced, unlogged
from echo.frontend.symbols import graph_with, infer_binding, numbered_symbol, with_attrs
from echo.ir.gradient_rules import EXCHANGES
from echo.ir.graph import PREFIX, READS, VARIABLE, Entry, Graph, Node
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, SIGNS_ATTRIBUTE, GradientRule, own_inputs
from echo.ir.ops import ops_with
from echo.kernels import library
from echo.plans.decisions import mark
from echo.system.threads import Lock, own_binds

# The fused kernels, loaded into MXNet as its extension library.

logger = logging.getLogger("echo")


@functools.lru_cache(maxsize=None)
def device_blocker(ctx: mx.Context) -> str:
    """Why the operators, once loaded, do not run on this device, or an empty text.

    What is wrong with a GPU, such as an old driver, shows here, with one warning for each device, and not in the first
    operator that runs there.
    """
    wrong = library.why_not_on_cuda(ctx.device_id) if ctx.device_type == "gpu" else ""
    if not wrong:
        return ""
    reason = f"the kernels do not run on {ctx}: {wrong}"
    logger.warning("echo: no operator is fused: %s", reason)
    return reason


@functools.lru_cache(maxsize=None)
def extension_blocker() -> str:
    """Loads the operators ``_echo_*`` into MXNet, once a process; why that fails, or an empty text.

    ``mx.library.load`` would also make Python functions for them, and a line of output.
    """
    try:
        path = library.kernels_library()._name
    except NativeError as error:
        return str(error)
    try:
        check_call(_LIB.MXLoadLib(c_str(str(path)), mx.base.mx_uint(0)))
    except mx.MXNetError as error:
        return f"MXNet does not load {path}: {str(error).strip().splitlines()[-1]}"
    missing = [name for name in sorted(READS) if not _is_there(PREFIX + name)]
    if missing:
        return f"{path} is of another echo, reinstall mxnet-echo: it has no kernel {missing[0]!r}"
    logger.info("echo: fused operators on the CPU use %s instructions", library.level())
    return ""


def loaded_from() -> str:
    """The file that the operators were loaded from, empty where they are not there."""
    is_loaded = extension_blocker.cache_info().currsize and not extension_blocker()
    return str(library.kernels_library()._name) if is_loaded else ""


def _is_there(op: str) -> bool:
    return bool(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(ctypes.c_void_p())) == 0)


# Is this an MXNet that echo can work on, and does the native hook fit it? Both are asked once a process.

_install_lock = Lock()
_ALLOWED = native.Allowed(
    ops_with(lambda spec: spec.safety.recomputable), ops_with(lambda spec: spec.safety.every_output), EXCHANGES
)


def check_version() -> None:
    """Refuses an MXNet that echo cannot work on.

    Raises:
        UnsupportedError: it is of another version than the one that the hook and the planner replay exactly, or another
            copy of echo works on it in this process: either copy would take the other's binds for the user's.
    """
    compat.check_version(mx.__version__)
    owner = vars(mx).setdefault("_echo_owner", compat)  # a module of the copy that came first
    if owner is not compat:
        where = " and ".join(os.path.dirname(str(copy.__file__)) for copy in (owner, compat))
        raise UnsupportedError(f"two copies of echo in one process, {where}: the first one stays, start Python again")


def install_hook() -> str:
    """Wraps MXNet's passes and checks the result once; the reason why not where that fails, else an empty text."""
    with _install_lock.held():
        return "" if native.installed() else _install_checked()


def _install_checked() -> str:
    try:
        native.install(mxnet.libinfo.find_lib_path()[0], _ALLOWED)
        try:
            check_hook()
        except EchoError:
            native.uninstall()
            raise
    except EchoError as error:
        return str(error)
    return ""


# Does the native hook read this MXNet binary right? A tiny graph is bound, read back and compared.

_EXPECTED = (
    ("null", "n0", [[512, 512]]),
    ("null", "n1", [[512, 512]]),
    ("FullyConnected", "n2", [[512, 512]]),
    ("Activation", "n3", [[512, 512]]),
    ("null", "n4", [[2, 512]]),
    ("FullyConnected", "n5", [[512, 2]]),
    ("null", "n6", [[512, 2]]),
    ("LinearRegressionOutput", "n7", [[512, 2]]),
)


def _graph() -> Graph:
    return graph_with(
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
    graph = _graph()
    symbol = numbered_symbol(graph)
    binding = infer_binding(symbol, {"n0": (512, 512)})
    with native.capture() as caught:
        executor = bind_without_memory(symbol, binding, mx.cpu())
    if caught.graph is None:
        raise NativeError("the hook does not fit this MXNet: it was not called at a bind")
    nodes = native.captured_nodes(caught.graph)
    read = tuple((node.kind["op"], node.name, node.kind["shapes"]) for node, _ in zip(nodes, _EXPECTED))
    if read != _EXPECTED:
        raise NativeError(f"the hook does not fit this MXNet: expected to read {_EXPECTED}, got {read}")
    megabytes = planned_megabytes(executor)
    if caught.graph["allocated_bytes"] >> 20 != megabytes:
        read_bytes = caught.graph["allocated_bytes"]
        raise NativeError(f"the hook does not fit this MXNet: expected {megabytes} MB planned, got {read_bytes} bytes")
    number = next(index for index, node in enumerate(graph.nodes) if node.op == "Activation")
    marked = with_attrs(symbol, graph, mark(graph, {number: [0]}, hook=True))
    if marked is None or f"Name=n{number}_echo\n" not in bind_without_memory(marked, binding, mx.cpu()).debug_str():
        raise NativeError("the hook does not fit this MXNet: a planned node was not recomputed")


@functools.lru_cache(maxsize=None)
def onednn_activations() -> bool:
    """Whether oneDNN computes gradients of activations here, as `echo.ir.gradient_rules` knows it.

    The gradient of tanh then does not read the output, and that of sigmoid has the bits of MXNet's own gradient, which
    reads the output alone. It depends on the build and on ``MXNET_MKLDNN_ENABLED``, so it is tried, with the hook.
    """
    from_input = GradientRule("_backward_Activation", "_backward_Activation", own_inputs(0, 0, 2))
    from_output = GradientRule("_backward_Activation", "_backward_sigmoid", own_inputs(0, 1))
    graph = graph_with(
        Node(VARIABLE, "x"), Node("Activation", "tanh", (Entry(0),), attrs={"act_type": "tanh"}),
        Node(VARIABLE, "y"), Node("Activation", "sigmoid", (Entry(2),), attrs={"act_type": "sigmoid"}), heads=(1, 3),
    )  # fmt: skip
    exchanged = graph.with_attrs({1: {GRADIENT_ATTRIBUTE: from_input.text}, 3: {GRADIENT_ATTRIBUTE: from_output.text}})
    symbol = numbered_symbol(graph)
    changed = with_attrs(symbol, graph, exchanged)
    assert changed is not None
    return _gradients(symbol) == _gradients(changed)


@functools.lru_cache(maxsize=None)
def onednn_norms() -> bool:
    """Whether oneDNN computes a BatchNorm and its ReLU together here, with the gradients of both.

    MXNet's own gradient of that is wrong where arrays come in different orders, as here the plain input and what the
    gradient of a convolution writes. The hook mends it (``batch_norm.cc``), which is tried, with the hook.
    """
    if not onednn_activations():
        return False  # without oneDNN, that operator ends the process

    def graph(*norm: Node) -> Graph:
        variables = (Node(VARIABLE, f"v{number}") for number in range(6))
        convolution = {"kernel": "(3, 3)", "pad": "(1, 1)", "num_filter": "16", "no_bias": "True"}
        last = Entry(5 + len(norm))
        return graph_with(*variables, *norm, Node("Convolution", "conv", (last, Entry(5)), attrs=convolution))

    inputs, attrs = tuple(map(Entry, range(5))), {"fix_gamma": "False"}
    norm = Node("BatchNorm", "norm", inputs, attrs=attrs)
    relu = Node("Activation", "relu", (Entry(6),), attrs={"act_type": "relu"})
    both = Node("_contrib_BatchNormWithReLU", "norm", inputs, attrs={**attrs, SIGNS_ATTRIBUTE: "True"})
    shapes = {"n0": (2, 16, 8, 8), "n1": (16,), "n2": (16,), "n5": (16, 16, 3, 3)}
    stock, fused = (_step(numbered_symbol(each), shapes) for each in (graph(norm, relu), graph(both)))
    return all(np.abs(x - y).max() <= 1e-4 * np.abs(x).max() for x, y in zip(stock, fused))


def _gradients(symbol: mx.sym.Symbol) -> list[bytes]:
    """The bytes of the gradients of this symbol's variables, each of which one output is computed from."""
    return [array.tobytes() for array in _step(symbol, dict.fromkeys(symbol.list_arguments(), (1536,)))]


def _step(symbol: mx.sym.Symbol, shapes: Mapping[str, tuple[int, ...]]) -> list[np.ndarray[Any, Any]]:
    """The gradients of the arguments, which have these shapes, in a step of fixed numbers between -12 and 12."""
    silenced()
    ctx = mx.cpu()  # blocks run in the context of their data, which need not be this one

    def numbers(shape: tuple[int, ...]) -> mx.nd.NDArray:
        count = math.prod(shape)
        return mx.nd.array(np.arange(-12, 12, 24 / count)[:count].reshape(shape), ctx)

    with own_binds(), unlogged():
        data = {name: numbers(shape) for name, shape in shapes.items()}
        gradients = {name: mx.nd.zeros(shape, ctx) for name, shape in shapes.items()}
        _, outputs, states = symbol.infer_shape(**shapes)
        aux = [mx.nd.ones(shape, ctx) for shape in states]
        executor = mx.sym.Symbol.bind(symbol, ctx, data, gradients, aux_states=aux)
    executor.forward(is_train=True)
    executor.backward([mx.nd.array(np.arange(1, 1 + math.prod(s)).reshape(s) / 7, ctx) for s in outputs])
    return [executor.grad_dict[name].asnumpy() for name in shapes]
