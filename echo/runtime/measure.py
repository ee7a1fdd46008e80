"""Seconds of single operators on the user's device, measured inside MXNet's executor.

In a training graph the engine dispatches operators without Python, so a node is measured as several copies in one
small executor, on random finite inputs of its own shapes. A gradient operator stands beside the forward operator that
it belongs to, and the forward time is taken off. Nothing here draws from MXNet's random stream.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from echo.estimators.overhead import (
    BYTES_PER_SECOND,
    FLOPS_PER_SECOND,
    HEAVY_OPS,
    LAUNCH,
    UnmeasurableError,
    attributes,
    forward_node,
    is_blocked,
    work,
)
from echo.graph import VARIABLE, Entry
from echo.training_graph import TensorType, TrainingGraph, TrainingNode

# Up to these a node is measured at full size; beyond, with a part of its leading dimension, and scaled.
_MOST_BYTES = 24 << 20
_MOST_FLOPS = 5e8
_LARGEST_BYTES = 256 << 20  # what cannot be cut is not measured beyond this
# A timed run takes about this long, or has this many copies, or copies that read and write this many bytes.
_RUN_SECONDS = 1.5e-3
_MOST_COPIES = 24
_MOST_COPIED_BYTES = 12 << 20
_LONG_RUN = 4e-3  # what takes thrice this long is cut down to it, if it can be
_HOT_RUNS, _COLD_RUNS = 3, 2  # of which the shortest counts
# A copy of this many bytes drives operands out of the caches, as the rest of a training step does: with it the
# operators of an NMT step take what the profiler sees in the whole graph, without it 0.6 times that.
_FLUSH_BYTES = 16 << 20
# Reading the parameters may take this part of a measurement that is scaled; at full size it takes less.
_READING_PART = 0.15
_FLOATS = ("float32", "float64", "float16")
_OTHERS = ("uint8", "int32", "int8", "int64")
# The batch is the leading dimension of the first input only; the others are parameters.
_PARAMETER_OPS = frozenset({
    "Convolution", "Deconvolution", "FullyConnected", "BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm",
    "Embedding", "LeakyReLU", "RNN",
})  # fmt: skip
_FOREIGN_OPS = frozenset({"Custom", "_foreach", "_while_loop", "_cond", "_CustomFunction", "_CachedOp"})
_INDEXING_OPS = frozenset({"Embedding"})


def measure(training: TrainingGraph, number: int, ctx: mx.Context) -> float:
    """Seconds of one run of node ``number``; see `Meter`, which measures many nodes with less preparation."""
    return Meter(ctx)(training, number)


class Meter:
    """Measures nodes on one device.

    Light forward operators, the candidates for recomputation, find their inputs in the caches: what is recomputed was
    just asked for. All others run after the caches were flushed.
    """

    def __init__(self, ctx: mx.Context) -> None:
        # on cpu(0) MXNet fuses graphs that train nothing; another number is the same device, and leaves them alone
        self._ctx = mx.cpu(ctx.device_id + 1) if ctx.device_type == "cpu" else ctx
        self._random = np.random.RandomState(0)
        self._noise = self._random.uniform(0.1, 1.0, 16411)
        self._buffers: tuple[NDArray, NDArray] | None = None
        self._call_seconds = 0.0
        self._read: tuple[TrainingGraph, frozenset[tuple[int, int]]] | None = None

    def __call__(self, training: TrainingGraph, number: int) -> float:
        """Seconds of one run of node ``number``.

        Raises:
            UnmeasurableError: the node draws random numbers, runs foreign code, or MXNet cannot run it alone.
        """
        node = training.nodes[number]
        _refuse(training, node)
        try:
            return self._measure(training, number, max(1.0, _excess(training, node)))
        except mx.MXNetError as error:
            reason = str(error).strip().splitlines()[-1]
            raise UnmeasurableError(f"{node.op} cannot be measured on its own: {reason}") from error

    def _entries_read(self, training: TrainingGraph) -> frozenset[tuple[int, int]]:
        if self._read is None or self._read[0] is not training:
            inputs = [entry[:2] for node in training.nodes for entry in node.inputs]
            self._read = training, frozenset([*inputs, *(entry[:2] for entry in training.outputs)])
        return self._read[1]

    def _measure(self, training: TrainingGraph, number: int, excess: float) -> float:
        trial = _Trial.of(training, number, excess, self._entries_read(training))
        once = self._once(trial)
        if once > 3 * _LONG_RUN and not trial.heavy:
            trial = _Trial.of(training, number, excess * once / _LONG_RUN, self._entries_read(training))
            once = min(once, self._once(trial))
        return self._seconds(trial, once) * trial.scale

    def _once(self, trial: _Trial) -> float:
        executor = self._bind(trial, 1)
        return min(self._timed(executor), self._timed(executor))

    def _seconds(self, trial: _Trial, once: float) -> float:
        base = self._best(trial, 0) if trial.forward else self._overhead()
        # copies whose sum stands out from the forward operator beside them
        wanted = max(_RUN_SECONDS, base) / max(once - base, LAUNCH)
        copies = max(1, int(min(wanted, _MOST_COPIES, _MOST_COPIED_BYTES / trial.bytes)))
        return max((self._best(trial, copies) - base) / copies, LAUNCH / 100)

    def _overhead(self) -> float:
        """Seconds of running an executor that does next to nothing."""
        if not self._call_seconds:
            symbol = mx.sym.identity(mx.sym.var("nothing"))
            executor = mx.sym.Symbol.bind(symbol, self._ctx, [mx.nd.zeros((1,), self._ctx)], grad_req="null")
            self._call_seconds = min(self._timed(executor) for _ in range(5))
        return self._call_seconds

    def _best(self, trial: _Trial, copies: int) -> float:
        executor = self._bind(trial, copies)
        self._timed(executor)
        seconds = []
        for _ in range(_HOT_RUNS if trial.hot else _COLD_RUNS):
            if not trial.hot:
                self._flush()
            seconds.append(self._timed(executor))
        return min(seconds)

    def _timed(self, executor: mx.executor.Executor) -> float:
        start = time.perf_counter()
        executor.forward(is_train=True)
        for output in executor.outputs:
            output.wait_to_read()
        return time.perf_counter() - start

    def _bind(self, trial: _Trial, copies: int) -> mx.executor.Executor:
        symbol = trial.symbol(copies)
        variables = trial.variables(copies)
        args = {name: self._array(variables[name]) for name in symbol.list_arguments()}
        aux = {name: self._array(variables[name]) for name in symbol.list_auxiliary_states()}
        return mx.sym.Symbol.bind(symbol, self._ctx, args, grad_req="null", aux_states=aux)

    def _array(self, variable: _Variable) -> NDArray:
        kind = variable.kind
        if variable.blocked and self._ctx.device_type == "cpu":
            return self._blocked(kind)
        if variable.below:
            values = self._random.randint(0, variable.below, kind.shape)
        elif kind.dtype in _FLOATS:
            values = np.resize(self._noise, kind.shape)
        elif kind.dtype in _OTHERS:
            values = np.zeros(kind.shape)
        else:
            raise UnmeasurableError(f"arrays of type {kind.dtype} cannot be made")
        return mx.nd.array(values, self._ctx, kind.dtype)

    def _blocked(self, kind: TensorType) -> NDArray:
        """An array in oneDNN's own layout: the output of a convolution that costs little."""
        channels = kind.shape[1]
        data, weight = mx.sym.var("data"), mx.sym.var("weight")
        kernel = (1,) * (len(kind.shape) - 2)
        symbol = mx.sym.Convolution(data, weight, no_bias=True, num_filter=channels, kernel=kernel)
        shapes = (kind.shape[0], 1, *kind.shape[2:]), (channels, 1, *kernel)
        arrays = [self._array(_Variable(TensorType(shape, kind.flag))) for shape in shapes]
        executor = mx.sym.Symbol.bind(symbol, self._ctx, arrays, grad_req="null")
        return executor.forward(is_train=True)[0]

    def _flush(self) -> None:
        if self._buffers is None:
            count = _FLUSH_BYTES // 4
            self._buffers = mx.nd.zeros((count,), self._ctx), mx.nd.zeros((count,), self._ctx)
        self._buffers[0].copyto(self._buffers[1]).wait_to_read()


class _Variable(NamedTuple):
    """An input: its type, whether oneDNN lays it out, and the bound of its integers (0: it holds reals)."""

    kind: TensorType
    blocked: bool = False
    below: int = 0


@dataclass(frozen=True)
class _Trial:
    """A node to be measured, perhaps at a part of its size: ``scale`` brings the seconds back to the whole.

    ``inputs`` are the node's variables; a number in their place is an output of ``forward``, the operator that a
    gradient belongs to, with its own ``forward_inputs``. ``outputs`` are the ones that somebody reads.
    """

    op: str
    attrs: dict[str, str]
    inputs: tuple[_Variable | int, ...]
    outputs: tuple[int, ...]
    forward: str
    forward_inputs: tuple[_Variable, ...]
    hot: bool
    heavy: bool
    bytes: int
    scale: float = 1.0

    @staticmethod
    def of(training: TrainingGraph, number: int, excess: float, read: frozenset[tuple[int, int]]) -> _Trial:
        """The trial of a node that is ``excess`` times too large; the entries in ``read`` are read by others.

        Raises:
            UnmeasurableError: the node is too large and cannot be cut.
            mx.MXNetError: MXNet does not accept the node's shapes.
        """
        node = training.nodes[number]
        forward = forward_node(training, node)
        sizes = _Sizes.of(training, number if forward is None else node.control_deps[0], excess)
        inputs = tuple(_operand(training, number, entry, sizes) for entry in node.inputs)
        read_bytes = sum(item.kind.bytes for item in inputs if isinstance(item, _Variable))
        return _Trial(
            op=node.op,
            attrs=_attributes(training, node),
            inputs=inputs,
            outputs=tuple(i for i in range(len(node.outputs)) if (number, i) in read) or (0,),
            forward=forward.op if forward else "",
            forward_inputs=tuple(_variable(training, e, sizes, forward.op) for e in forward.inputs)
            if forward
            else (),
            hot=node.forward and node.op not in HEAVY_OPS,
            heavy=(forward or node).op in HEAVY_OPS,
            bytes=max(1, read_bytes + int(sum(kind.bytes for kind in node.outputs) / sizes.scale)),
            scale=sizes.scale,
        )

    def variables(self, copies: int) -> dict[str, _Variable]:
        """The variables of `symbol` by name."""
        named = {f"forward_{i}": variable for i, variable in enumerate(self.forward_inputs)}
        for copy in range(copies):
            for i, item in enumerate(self.inputs):
                if isinstance(item, _Variable):
                    named[self._name(copy, i)] = item
        return named

    def _name(self, copy: int, position: int) -> str:
        return f"copy{0 if self.hot else copy}_{position}"

    def symbol(self, copies: int) -> mx.sym.Symbol:
        """So many copies of the node; where they are hot, all read the same inputs."""
        nodes: list[dict[str, Any]] = [
            {"op": VARIABLE, "name": name, "inputs": []} for name in self.variables(copies)
        ]
        number = {node["name"]: i for i, node in enumerate(nodes)}
        arguments = list(range(len(nodes)))
        heads: list[list[int]] = []
        above: list[int] = []
        if self.forward:
            above = [len(nodes)]
            heads.append([len(nodes), 0, 0])
            inputs = [[number[f"forward_{i}"], 0, 0] for i in range(len(self.forward_inputs))]
            nodes.append({"op": self.forward, "name": "forward", "attrs": self.attrs, "inputs": inputs})
        for copy in range(copies):
            inputs = [
                [above[0], item, 0] if isinstance(item, int) else [number[self._name(copy, i)], 0, 0]
                for i, item in enumerate(self.inputs)
            ]
            heads.extend([len(nodes), output, 0] for output in self.outputs)
            # without a difference MXNet would merge the copies into one
            attrs = {**self.attrs, "__copy__": str(copy)}
            nodes.append({"op": self.op, "name": f"node{copy}", "attrs": attrs, "inputs": inputs, "control_deps": above})
        value = {"nodes": nodes, "arg_nodes": arguments, "heads": heads, "attrs": {"mxnet_version": ["int", 10901]}}
        return mx.sym.load_json(json.dumps(value))


def _attributes(training: TrainingGraph, node: TrainingNode) -> dict[str, str]:
    attrs = attributes(training, node)
    return {**attrs, "num_args": str(len(node.inputs))} if node.op == "add_n" else attrs


def _operand(training: TrainingGraph, number: int, entry: Entry, sizes: _Sizes) -> _Variable | int:
    node = training.nodes[number]
    producer = training.nodes[entry.node]
    own = not node.forward and entry.node in node.control_deps[:1]
    # a state or index must be what the operator itself wrote; of plain numbers each copy gets its own
    if own and (producer.stateful or training.type_of(entry).dtype not in _FLOATS):
        return entry.index
    forward = forward_node(training, node)
    return _variable(training, entry, sizes, forward.op if forward else node.op)


def _variable(training: TrainingGraph, entry: Entry, sizes: _Sizes, op: str) -> _Variable:
    below = 0
    if op in _INDEXING_OPS and entry[:2] == sizes.first_input:
        below = sizes.rows
    return _Variable(sizes.kind(training, entry), is_blocked(training, entry), below)


def _excess(training: TrainingGraph, node: TrainingNode) -> float:
    """How many times too large a node is to be measured whole."""
    needed = work(training, node)
    if not needed.flops:
        return needed.bytes / _MOST_BYTES
    # a part of the batch reads all parameters: computing with it must take longer
    parameters = sum(training.type_of(entry).bytes for entry in node.inputs[1:])
    reading = parameters / BYTES_PER_SECOND if node.op in _PARAMETER_OPS else 0.0
    return needed.flops / max(_MOST_FLOPS, reading / _READING_PART * FLOPS_PER_SECOND)


@dataclass(frozen=True)
class _Sizes:
    """Types of the entries around an operator, with a smaller leading dimension if it is too large.

    ``smaller`` maps entries, ``outputs`` the operator's full output shapes, which gradients share.
    """

    first_input: tuple[int, ...]
    rows: int
    smaller: dict[tuple[int, ...], TensorType]
    outputs: dict[tuple[int, ...], tuple[int, ...]]
    scale: float = 1.0

    def kind(self, training: TrainingGraph, entry: Entry) -> TensorType:
        full = training.type_of(entry)
        known = self.smaller.get(entry[:2])
        return known or TensorType(self.outputs.get(full.shape, full.shape), full.flag)

    @staticmethod
    def of(training: TrainingGraph, number: int, excess: float) -> _Sizes:
        node = training.nodes[number]
        first = node.inputs[0][:2] if node.inputs else ()
        rows = training.type_of(node.inputs[1]).shape[0] if node.op in _INDEXING_OPS else 0
        whole = _Sizes(first, rows, {}, {})
        if excess <= 1:
            return whole
        try:
            return whole._cut(training, number, excess)
        except (mx.MXNetError, UnmeasurableError):
            if work(training, node).bytes > _LARGEST_BYTES:
                raise
            return whole

    def _cut(self, training: TrainingGraph, number: int, excess: float) -> _Sizes:
        """The operator with a leading dimension smaller by about ``excess``, if it scales with that."""
        node = training.nodes[number]
        kinds = [training.type_of(entry) for entry in node.inputs]
        batched = kinds[:1] if node.op in _PARAMETER_OPS else kinds
        length = max((kind.shape[0] for kind in batched if kind.shape), default=1)
        part = max(1, min(length, max(2, int(length / excess))))
        cut = [
            TensorType((part, *kind.shape[1:]), kind.flag)
            if position < len(batched) and kind.shape[:1] == (length,)
            else kind
            for position, kind in enumerate(kinds)
        ]
        shapes = _output_shapes(node.op, _attributes(training, node), cut)
        before, after = node.outputs[0].elements, int(np.prod(shapes[0], dtype=np.int64))
        if before * part != after * length:
            raise UnmeasurableError(f"{node.op} does not scale with its leading dimension")
        smaller = {entry[:2]: kind for entry, kind in zip(node.inputs, cut)}
        outputs = {}
        for index, (kind, shape) in enumerate(zip(node.outputs, shapes)):
            smaller[number, index] = TensorType(shape, kind.flag)
            outputs[kind.shape] = shape
        return _Sizes(self.first_input, self.rows, smaller, outputs, length / part)


def _output_shapes(op: str, attrs: dict[str, str], kinds: Sequence[TensorType]) -> list[tuple[int, ...]]:
    variables = tuple(_Variable(kind) for kind in kinds)
    symbol = _Trial(op, attrs, variables, (0,), "", (), True, False, 1).symbol(1).get_internals()
    shapes = {f"copy0_{position}": kind.shape for position, kind in enumerate(kinds)}
    _, inferred, _ = symbol.infer_shape(**shapes)
    return [tuple(shape) for name, shape in zip(symbol.list_outputs(), inferred) if name.startswith("node0")]


def _refuse(training: TrainingGraph, node: TrainingNode) -> None:
    """Raises `UnmeasurableError` for what must not or cannot run outside of the user's graph."""
    for part in (node, forward_node(training, node)):
        if part is None:
            continue
        if part.is_variable or part.op in _FOREIGN_OPS:
            raise UnmeasurableError(f"{part.op} has no cost of its own")
        if part.random or (part.op == "RNN" and float(part.attrs.get("p", "0")) > 0):
            raise UnmeasurableError(f"{part.op} would move MXNet's random stream")


def device_key(ctx: mx.Context) -> str:
    """Names the device and everything else that measured seconds depend on."""
    hardware = _gpu_name(ctx.device_id) if ctx.device_type == "gpu" else _cpu_name()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    one_dnn = os.environ.get("MXNET_MKLDNN_ENABLED", "1")
    return f"{hardware}, {_cores()} cores, OMP_NUM_THREADS {threads}, oneDNN {one_dnn}, mxnet {mx.__version__}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    """Model, family and stepping: on virtual machines the name alone says little."""
    wanted = ("model name", "cpu family", "model", "stepping", "cache size")
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in wanted:
                found.setdefault(key.strip(), value.strip())
    return " ".join(found.get(key, "?") for key in wanted)


def _gpu_name(index: int) -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # no driver, no library: any GPU of this machine shares one table
        return f"gpu ({type(error).__name__})"
    return name.decode() if isinstance(name, bytes) else str(name)
