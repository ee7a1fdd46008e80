"""Planning without the native hook: MXNet's own mirroring applies the plan, and MXNet itself evaluates it.

Without the hook the training graph cannot be read. MXNet's printout names nodes, but gives sums of gradients equal
names; which of them a node reads would be a guess. So a choice is marked on the forward nodes (``__force_mirroring__``)
and bound without memory, and its total is read off: exact, limits of mirroring included, but a thousand times slower.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import numpy as np

from echo.errors import GraphError, UnsupportedError
from echo.estimators.storage_planner import Evaluation, RecomputeMask
from echo.frontend.capture import mxnet_memory_plan
from echo.frontend.mxnet_settings import match_range
from echo.frontend.symbols import Binding, infer_shapes, infer_types, load, symbol_of, type_name
from echo.ir.graph import Graph
from echo.ir.op_spec import MIRROR_ATTRIBUTE
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import FLAGS, TensorType, TrainingNode

_BINDS = 20  # of a search: two to four seconds on graphs of thousands of nodes


def forward_graph(graph: Graph, binding: Binding, ctx: mx.Context) -> TrainingGraph:
    """The forward nodes alone, as a training graph without gradients.

    Raises:
        UnsupportedError: no argument needs a gradient.
        GraphError: MXNet does not infer the type of every entry.
    """
    if all(request == "null" for request in binding.grad_req):
        raise UnsupportedError("no argument needs a gradient (grad_req is 'null' for all): nothing is trained")
    types = _all_types(graph, binding)
    nodes = tuple(
        TrainingNode(
            op=node.op,
            name=node.name,
            outputs=types[number],
            inputs=node.inputs,
            control_deps=node.control_deps,
            attrs=node.attrs,
            original=number,
        )
        for number, node in enumerate(graph.nodes)
    )
    planned = mxnet_memory_plan(symbol_of(graph), binding, ctx, hook=False).bytes
    return TrainingGraph(nodes, graph.heads, len(graph.heads), planned)


def _all_types(graph: Graph, binding: Binding) -> list[tuple[TensorType, ...]]:
    value: dict[str, Any] = graph.to_json()
    counts = [graph.num_outputs(number) for number in range(len(graph.nodes))]
    value["heads"] = [[number, index, 0] for number, count in enumerate(counts) for index in range(count)]
    symbol = load(value)
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    shape_of = {**dict(zip(names, binding.arg_shapes)), **dict(zip(aux_names, binding.aux_shapes))}
    dtype_of = {**dict(zip(names, binding.arg_types)), **dict(zip(aux_names, binding.aux_types))}
    _, shapes, _ = infer_shapes(symbol, shape_of)
    _, dtypes, _ = infer_types(symbol, dtype_of)
    if shapes is None or dtypes is None:
        raise GraphError("MXNet does not infer the shape and type of every entry of the symbol")
    entries = iter([TensorType(tuple(shape), FLAGS[type_name(dtype)]) for shape, dtype in zip(shapes, dtypes)])
    return [tuple(next(entries) for _ in range(count)) for count in counts]


class MirrorEvaluator:
    """Evaluates choices by binding them (`echo.estimators.storage_planner`). Mirroring runs every chosen node again."""

    def __init__(
        self, graph: Graph, binding: Binding, ctx: mx.Context, training: TrainingGraph, seconds: Sequence[float]
    ) -> None:
        self._graph, self._binding, self._ctx = graph, binding, ctx
        self._seconds = np.array(seconds)
        starts = np.array(training.first_entry)
        self.entries = int(starts[-1])
        self._node_of = np.repeat(np.arange(len(training.nodes)), np.diff(starts))
        self.effort = _BINDS * len(training.nodes)

    def executed(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None = None) -> RecomputeMask:
        """``executed[i] = 1`` for the forward nodes that are recomputed, once each whatever the splits."""
        executed = np.zeros(len(self._seconds), np.uint8)
        executed[self._node_of[recompute.nonzero()[0]]] = 1
        return executed

    def evaluate(
        self,
        recompute: RecomputeMask,
        match_ranges: Sequence[int],
        limit: int | None = None,
        schedule: RecomputeSchedule | None = None,
    ) -> Evaluation:
        """The totals of MXNet's planner, rounded up to megabytes; a limit changes nothing, nor do splits."""
        executed = self.executed(recompute)
        marked = self._graph.with_attrs({int(number): {MIRROR_ATTRIBUTE: "True"} for number in executed.nonzero()[0]})
        symbol = symbol_of(marked)
        totals = []
        for value in match_ranges:
            with match_range(value):
                totals.append(mxnet_memory_plan(symbol, self._binding, self._ctx, hook=False).bytes)
        return Evaluation(tuple(totals), float(self._seconds[executed.nonzero()[0]].sum()))
