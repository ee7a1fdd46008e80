"""MXNet as a frontend of the planner: one symbol graph, bound with known shapes on one device."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from typing import Callable, Mapping, Sequence

import mxnet as mx
import mxnet.libinfo
import numpy as np

import echo
from echo import compat, native
from echo.errors import EchoError, UnsupportedError
from echo.estimators.cost_table import CostTable
from echo.estimators.evaluator import Evaluator
from echo.estimators.footprint import AUXILIARY, GRADIENTS, INPUTS, WEIGHTS
from echo.estimators.planner import make_planner
from echo.frontend.cached import as_cached
from echo.frontend.mirror import MirrorEvaluator, forward_graph
from echo.frontend.selfcheck import check_hook
from echo.frontend.symbols import Binding, symbol_of
from echo.frontend.training import default_match_range, match_range, oracle, training_graph
from echo.graph import Graph
from echo.locks import Lock
from echo.runtime.measure import device_key, measure
from echo.training_graph import EXECUTOR, TrainingGraph

_install_lock = Lock()


def check_version() -> None:
    """Refuses what echo cannot work on.

    Raises:
        UnsupportedError: any MXNet but the one that the hook and the planner replay exactly, or one on which another
            copy of echo works in this process: each would take the other's binds for the user's.
    """
    compat.check_version(mx.__version__)
    owner = vars(mx).setdefault("_echo_owner", echo)
    if owner is not echo:
        where = f"{next(iter(owner.__path__))} and {next(iter(echo.__path__))}"
        raise UnsupportedError(f"two copies of echo in one process, {where}: the first one stays, start Python anew")


def install_hook() -> str:
    """Wraps MXNet's passes and checks the result once; the reason why not where that fails, else an empty text."""
    with _install_lock.held():
        return "" if native.installed() else _install_checked()


def _install_checked() -> str:
    try:
        native.install(mxnet.libinfo.find_lib_path()[0])
        try:
            check_hook()
        except EchoError:
            native.uninstall()
            raise
    except EchoError as error:
        return str(error)
    return ""


class MxnetSession:
    """Answers the planner's questions about one graph (`echo.passes.request.Frontend`)."""

    def __init__(self, graph: Graph, binding: Binding, ctx: mx.Context, runner: str = EXECUTOR) -> None:
        check_version()
        self._graph, self._binding, self._ctx, self._runner = graph, binding, ctx, runner
        self.device: str = "gpu" if ctx.device_type == "gpu" else "cpu"
        self.why_no_hook = install_hook()
        self.hook = not self.why_no_hook
        self.device_key = device_key(ctx)
        self.match_range = default_match_range()
        self.static: Mapping[str, int] = _static_bytes(binding)
        self.family = _family(graph, binding, self.device, runner)
        self.fingerprint = fingerprint(graph, binding, self.device, runner)

    def differentiate(self) -> TrainingGraph:
        """The training graph of the user's symbol."""
        if self.hook:
            return self._as_run(training_graph(self._graph, self._binding, self._ctx), self.match_range)
        return forward_graph(self._graph, self._binding, self._ctx)

    def _as_run(self, training: TrainingGraph, match_range_: int) -> TrainingGraph:
        return training if self._runner == EXECUTOR else as_cached(training, self._runner, match_range_)

    def oracle(self, graph: Graph, match_range_: int) -> tuple[int, tuple[bool, ...]]:
        """What MXNet's own planner says of a rewritten graph: bytes (MB without the hook), accumulations.

        A CachedOp is planned when it runs: its graph is MXNet's own, its planner is replayed.
        """
        if self._runner != EXECUTOR:
            training = self._as_run(training_graph(graph, self._binding, self._ctx), match_range_)
            return training.planned_bytes, training.accumulations
        with contextlib.nullcontext() if self.hook else match_range(match_range_):
            said = oracle(symbol_of(graph), self._binding, self._ctx, self.hook)
        return said.bytes, said.accumulations

    def evaluator(self, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        """MXNet's planner, replayed; without the hook MXNet's planner itself."""
        if self.hook:
            return make_planner(training, seconds)
        evaluator = MirrorEvaluator(self._graph, self._binding, self._ctx, training, seconds)
        return evaluator, evaluator.effort

    def cost_table(self) -> CostTable:
        """The measured costs of this device."""
        return CostTable(self.device_key)

    def measure(self, training: TrainingGraph, number: int) -> float:
        """Seconds of one node on this device."""
        return measure(training, number, self._ctx)


def _static_bytes(binding: Binding) -> dict[str, int]:
    def total(shape: tuple[int, ...], kind: object) -> int:
        return int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize  # type: ignore[call-overload, no-any-return]

    args = list(zip(binding.arg_shapes, binding.arg_types, binding.grad_req))
    trained = sum(total(shape, kind) for shape, kind, request in args if request != "null")
    return {
        WEIGHTS: trained,
        GRADIENTS: trained,
        INPUTS: sum(total(shape, kind) for shape, kind, request in args if request == "null"),
        AUXILIARY: sum(total(shape, kind) for shape, kind in zip(binding.aux_shapes, binding.aux_types)),
    }


def _family(graph: Graph, binding: Binding, device: str, runner: str) -> str:
    """Equal for the lengths of a BucketingModule, the batch sizes of a Gluon block: same weights, same device."""
    names = sorted(graph.nodes[number].name for number in graph.arg_nodes)
    return json.dumps([names, sorted(set(binding.grad_req)), device, runner])


def fingerprint(graph: Graph, binding: Binding, device: str, runner: str = EXECUTOR) -> str:
    """A stable text that is equal for graphs, shapes, types and settings that may share a plan."""
    settings = [os.environ.get(name, "") for name in ("NNVM_EXEC_MATCH_RANGE", "MXNET_BACKWARD_DO_MIRROR")]
    digest = hashlib.sha256(json.dumps([repr(binding.key), device, settings, runner]).encode())
    _digest(graph, digest.update)
    return digest.hexdigest()[:32]


def _digest(graph: Graph, update: Callable[[bytes], None]) -> None:
    """All that a graph says, as a few long lists: on its way to every plan, also to one that is on disk."""
    nodes = graph.nodes
    attrs = [tuple(node.attrs.items()) for node in nodes]
    kinds = {items: tuple(sorted(items)) for items in dict.fromkeys(attrs)}  # an unrolled graph has few
    number_of = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
    numbers = {items: number_of[kind] for items, kind in kinds.items()}
    rare = {number: node.control_deps for number, node in enumerate(nodes) if node.control_deps}
    update(json.dumps([len(nodes), list(number_of), rare, graph.heads]).encode())
    for texts in ([node.op for node in nodes], [node.name for node in nodes]):
        update(np.array(list(map(len, texts)), np.int64).tobytes())
        update("".join(texts).encode("utf-8", "surrogatepass"))
    reads = [len(node.inputs) for node in nodes]
    for counts in (reads, [len(node.subgraphs) for node in nodes], [numbers[items] for items in attrs]):
        update(np.array(counts, np.int64).tobytes())
    entries = itertools.chain.from_iterable(itertools.chain.from_iterable([node.inputs for node in nodes]))
    update(np.fromiter(entries, np.int64, 3 * sum(reads)).tobytes())
    for node in nodes:
        for subgraph in node.subgraphs:
            _digest(subgraph, update)
