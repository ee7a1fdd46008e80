"""Seconds of single operators on the user's device, measured inside MXNet's executor.

In a training graph the engine dispatches operators without Python, so a node is measured as several copies in one
small executor, on random finite inputs of its own shapes. A gradient operator stands beside the forward operator that
it belongs to, and the forward time is taken off. Nothing here draws from MXNet's random stream.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.ndarray import NDArray

from echo.estimators.overhead import LAUNCH, UnmeasurableError
from echo.runtime.trial import FLOATS, Facts, Trial, Variable, excess, refuse
from echo.training_graph import TensorType, TrainingGraph

# A timed run takes about this long, or has this many copies, or copies that read and write this many bytes.
_RUN_SECONDS = 1.5e-3
_MOST_HOT_COPIES, _MOST_COLD_COPIES = 64, 16
_MOST_COPIED_BYTES = 12 << 20
_LEAST_SECONDS = LAUNCH / 10  # differences below are noise
_LONG_RUN = 3e-3  # what takes thrice this long is cut down to it, if it can be
_HOT_RUNS, _COLD_RUNS = 3, 2  # of which the shortest counts
# A copy of this many bytes drives operands out of the caches, as the rest of a training step does: with it the
# operators of an NMT step take what the profiler sees in the whole graph, without it 0.6 times that.
_FLUSH_BYTES = 16 << 20
_MOST_KEPT_BYTES = 96 << 20  # of arrays for the next measurements
_INTEGERS = frozenset({"uint8", "int32", "int8", "int64"})


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
        self._made: dict[Variable, list[NDArray]] = {}
        self._buffers: tuple[NDArray, NDArray] | None = None
        self._call_seconds = 0.0
        self._known: tuple[TrainingGraph, Facts] | None = None

    def __call__(self, training: TrainingGraph, number: int) -> float:
        """Seconds of one run of node ``number``.

        Raises:
            UnmeasurableError: the node draws random numbers, runs foreign code, or MXNet cannot run it alone.
        """
        node = training.nodes[number]
        refuse(training, node)
        if sum(variable.kind.bytes * len(made) for variable, made in self._made.items()) > _MOST_KEPT_BYTES:
            self._made.clear()
        try:
            return self._measure(training, number, excess(training, node))
        except mx.MXNetError as error:
            reason = str(error).strip().splitlines()[-1]
            raise UnmeasurableError(f"{node.op} cannot be measured on its own: {reason}") from error

    def _facts(self, training: TrainingGraph) -> Facts:
        if self._known is None or self._known[0] is not training:
            self._known = training, Facts.of(training)
        return self._known[1]

    def _measure(self, training: TrainingGraph, number: int, too_large: float) -> float:
        trial = Trial.of(training, number, too_large, self._facts(training))
        once = self._once(trial)
        if once > 3 * _LONG_RUN and not trial.heavy:
            trial = Trial.of(training, number, too_large * once / _LONG_RUN, self._facts(training))
            once = min(once, self._once(trial))
        return self._seconds(trial, once) * trial.scale

    def _once(self, trial: Trial) -> float:
        executor = self._bind(trial, 1)
        return min(self._timed(executor), self._timed(executor))

    def _seconds(self, trial: Trial, once: float) -> float:
        base = self._best(trial, 0) if trial.forward else self._overhead()
        # copies whose sum stands out from the forward operator beside them
        wanted = max(_RUN_SECONDS, base) / max(once - base, LAUNCH)
        most = _MOST_HOT_COPIES if trial.hot else _MOST_COLD_COPIES
        copies = max(1, int(min(wanted, most, _MOST_COPIED_BYTES / trial.bytes)))
        return max((self._best(trial, copies) - base) / copies, _LEAST_SECONDS)

    def _overhead(self) -> float:
        """Seconds of running an executor that does next to nothing."""
        if not self._call_seconds:
            symbol = mx.sym.identity(mx.sym.var("nothing"))
            executor = mx.sym.Symbol.bind(symbol, self._ctx, [mx.nd.zeros((1,), self._ctx)], grad_req="null")
            self._call_seconds = min(self._timed(executor) for _ in range(5))
        return self._call_seconds

    def _best(self, trial: Trial, copies: int) -> float:
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

    def _bind(self, trial: Trial, copies: int) -> mx.executor.Executor:
        symbol = trial.symbol(copies)
        arrays = self._arrays_for(trial.variables(copies))
        args = {name: arrays[name] for name in symbol.list_arguments()}
        aux = {name: arrays[name] for name in symbol.list_auxiliary_states()}
        return mx.sym.Symbol.bind(symbol, self._ctx, args, grad_req="null", aux_states=aux)

    def _arrays_for(self, variables: dict[str, Variable]) -> dict[str, NDArray]:
        """An array of its own for each variable; arrays of earlier measurements are used again."""
        taken: Counter[Variable] = Counter()
        arrays = {}
        for name, variable in variables.items():
            made = self._made.setdefault(variable, [])
            if taken[variable] == len(made):
                made.append(self._array(variable))
            arrays[name] = made[taken[variable]]
            taken[variable] += 1
        return arrays

    def _array(self, variable: Variable) -> NDArray:
        kind = variable.kind
        if variable.blocked and self._ctx.device_type == "cpu":
            return self._blocked(kind)
        values: npt.NDArray[Any]
        if variable.below:
            values = self._random.randint(0, variable.below, kind.shape)
        elif kind.dtype in FLOATS:
            values = np.resize(self._noise.astype(kind.dtype), kind.shape)
        elif kind.dtype in _INTEGERS:
            values = np.zeros(kind.shape, kind.dtype)
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
        arrays = [self._array(Variable(TensorType(shape, kind.flag))) for shape in shapes]
        executor = mx.sym.Symbol.bind(symbol, self._ctx, arrays, grad_req="null")
        return executor.forward(is_train=True)[0]

    def _flush(self) -> None:
        if self._buffers is None:
            count = _FLUSH_BYTES // 4
            self._buffers = mx.nd.zeros((count,), self._ctx), mx.nd.zeros((count,), self._ctx)
        self._buffers[0].copyto(self._buffers[1]).wait_to_read()


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
