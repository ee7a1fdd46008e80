"""The training graph of a symbol, from MXNet's own gradient and memory passes.

A bind with delayed allocation plans everything and owns no memory. The native hook writes the planned graph down while
that happens; without the hook, the total that the executor prints is all there is.
"""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import dataclass
from typing import AbstractSet, Any, Iterator, Mapping, Sequence

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _new_alloc_handle

from echo import native
from echo.errors import GraphError, UnsupportedError
from echo.frontend.mxnet_settings import silenced, unfused, unlogged
from echo.frontend.symbols import Binding, numbered_symbol
from echo.ir.graph import VARIABLE, Entry, Graph, walk
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode, tensor_type
from echo.native import CapturedNode, captured_nodes
from echo.system.process import trim_after
from echo.system.threads import own_binds, without_forks

# Nodes of a graph whose binds take so long that a thread does a part of the work: a second for 10,000 of them.
LARGE = 2000
_MANY = 1000  # nodes of a graph of which that is not known
_TOTAL = re.compile(r"^Total (\d+) MB allocated$", re.MULTILINE)
_NUMBER, _NUMBERED = re.compile(r"n\d+"), re.compile(r"n(\d+)_")  # names of nodes in the copy that is read back


@dataclass(frozen=True)
class MemoryPlan:
    """MXNet's memory plan of a bind: the bytes that are ever allocated, and `TrainingGraph.accumulations`.

    ``chunks`` are the bytes of each chunk that it plans; without the hook they are not known.
    """

    bytes: int
    accumulations: tuple[bool, ...] = ()
    chunks: tuple[int, ...] | None = None


def bind_without_memory(
    symbol: mx.sym.Symbol, binding: Binding, ctx: mx.Context, quiet: bool = True
) -> mx.executor.Executor:
    """A bound executor, fully planned, whose arrays are never allocated. It must not be run.

    Unless ``quiet``, MXNet writes the lines of `echo.frontend.mxnet_settings` for it.
    """

    def lazy(shape: tuple[int, ...], dtype: Any) -> NDArray:
        return NDArray(_new_alloc_handle(shape, ctx, True, dtype))

    args = [lazy(shape, dtype) for shape, dtype in zip(binding.arg_shapes, binding.arg_types)]
    aux = [lazy(shape, dtype) for shape, dtype in zip(binding.aux_shapes, binding.aux_types)]

    def gradient(place: int) -> NDArray:
        shape, dtype = binding.arg_shapes[place], binding.arg_types[place]
        if place in binding.sparse:
            return mx.nd.sparse.zeros("row_sparse", shape, ctx, dtype)  # which has no rows
        return lazy(shape, dtype)

    silenced()
    names = symbol.list_arguments()
    trained = [place for place, request in enumerate(binding.grad_req) if request != "null"]
    gradients = {names[place]: gradient(place) for place in trained}
    with own_binds(), unlogged() if quiet else contextlib.nullcontext():
        return mx.sym.Symbol.bind(symbol, ctx, args, gradients, list(binding.grad_req), aux)


def free(executor: mx.executor.Executor) -> None:
    """Has MXNet free an executor, which cannot be used any more.

    That takes a while, and Python ignores an interrupt (Ctrl-C) that comes while it runs ``__del__``.
    """
    handle, executor.handle = executor.handle, None
    check_call(_LIB.MXExecutorFree(handle))


def planned_megabytes(executor: mx.executor.Executor) -> int:
    """The total of MXNet's own memory planner for a bound executor, in MB (2^20 bytes, rounded down).

    Raises:
        GraphError: the executor's printout has no such line.
    """
    line = _TOTAL.search(executor.debug_str())
    if not line:
        raise GraphError("expected a line 'Total N MB allocated' in the executor's printout, found none")
    return int(line.group(1))


def _captured(
    symbol: mx.sym.Symbol, binding: Binding, ctx: mx.Context, nodes: bool, stock: bool = False, size: int = _MANY
) -> Mapping[str, Any]:
    """What the hook writes down of a bind; a thread frees the executor of a graph of many nodes (``size``)."""
    pointwise = contextlib.nullcontext() if stock else unfused(ctx)
    with without_forks():
        with native.capture(nodes) as caught, pointwise:
            executor = bind_without_memory(symbol, binding, ctx)
        if size < LARGE:
            _discard(executor, size)
    if size >= LARGE:
        threading.Thread(target=_discard, args=(executor, size)).start()
    if caught.graph is None:
        raise GraphError("the native hook saw no training graph: is it still installed?")
    graph: Mapping[str, Any] = caught.graph
    return graph


def _discard(executor: mx.executor.Executor, size: int) -> None:
    with without_forks():
        free(executor)
        trim_after(size)


def mxnet_memory_plan(symbol: mx.sym.Symbol, binding: Binding, ctx: mx.Context, hook: bool) -> MemoryPlan:
    """MXNet's memory plan of a symbol as echo binds it: exact with the hook, else bytes rounded up to a megabyte."""
    if not hook:
        with without_forks():
            executor = bind_without_memory(symbol, binding, ctx)
            megabytes = planned_megabytes(executor)
            free(executor)
        return MemoryPlan((megabytes + 1) << 20)
    captured = _captured(symbol, binding, ctx, nodes=False)
    return MemoryPlan(int(captured["touched_bytes"]), _accumulations(captured), chunks_in(captured))


def chunks_in(captured: Mapping[str, Any]) -> tuple[int, ...]:
    """The bytes of each chunk that MXNet's memory planner plans, read from what the hook wrote down."""
    return tuple(captured["chunks"])


def _accumulations(captured: Mapping[str, Any]) -> tuple[bool, ...]:
    return tuple(map(bool, captured["accumulations"]))


def chunk_bytes(symbol: mx.sym.Symbol, binding: Binding, ctx: mx.Context) -> tuple[int, ...]:
    """Bytes of each chunk that MXNet's memory planner, with the hook, plans for a bind of this symbol."""
    return chunks_in(_captured(symbol, binding, ctx, nodes=False))


def training_graph(
    graph: Graph, binding: Binding, ctx: mx.Context, marks: Mapping[int, Mapping[str, str]] | None = None
) -> TrainingGraph:
    """The training graph that a bind of ``graph`` would execute, were its nodes marked for the hook with ``marks``.

    Raises:
        UnsupportedError, GraphError: as `captured_graph` and `graph_in`.
    """
    return graph_in(captured_graph(graph, binding, ctx, marks), graph)


def captured_graph(
    graph: Graph,
    binding: Binding,
    ctx: mx.Context,
    marks: Mapping[int, Mapping[str, str]] | None = None,
    stock: bool = False,
    symbol: mx.sym.Symbol | None = None,
) -> Mapping[str, Any]:
    """The hook's JSON value of a bind of ``graph``, which `graph_in` and `chunks_in` read.

    ``stock``: as MXNet binds it by itself, which on GPUs fuses pointwise operators; echo's binds do not. ``symbol`` is
    the numbered one of the graph with its marks.

    Raises:
        UnsupportedError: no argument needs a gradient.
        GraphError: the hook saw nothing.
    """
    if all(request == "null" for request in binding.grad_req):
        raise UnsupportedError("no argument needs a gradient (grad_req is 'null' for all): nothing is trained")
    symbol = numbered_symbol(graph.with_attrs(marks or {})) if symbol is None else symbol
    return _captured(symbol, binding, ctx, nodes=True, stock=stock, size=len(graph.nodes))


def graph_in(captured: Mapping[str, Any], original: Graph) -> TrainingGraph:
    """The training graph, read from what the hook wrote down of a bind of ``original``.

    Raises:
        GraphError: it has a structure that echo does not know, or arguments in another order than ``original``, which
            MXNet would hand to each other's places.
    """
    nodes = list(captured_nodes(captured))
    _check_order(nodes, original)
    outputs = tuple(Entry(*entry) for entry in captured["outputs"])
    num_forward = len(original.heads)
    heads = (entry.node for entry in outputs[:num_forward])
    forward = set(walk(heads, lambda at: (*nodes[at].inputs[::2], *nodes[at].control_deps)))
    return TrainingGraph(
        nodes=tuple(_training_nodes(nodes, forward, original)),
        outputs=outputs,
        num_forward_outputs=num_forward,
        planned_bytes=captured["touched_bytes"],
        accumulations=_accumulations(captured),
    )


def _check_order(nodes: Sequence[CapturedNode], original: Graph) -> None:
    arguments = [node.name for node in nodes if node.kind["op"] == VARIABLE and _NUMBER.fullmatch(node.name)]
    bound_order = [int(name[1:]) for name in arguments]
    if bound_order != list(original.arg_nodes):
        expected, got = (
            [original.nodes[number].name for number in numbers] for numbers in (original.arg_nodes, bound_order)
        )
        raise GraphError(f"MXNet binds the arguments in another order: expected {expected}, got {got}")


def _training_nodes(
    nodes: Sequence[CapturedNode], forward: AbstractSet[int], original: Graph
) -> Iterator[TrainingNode]:
    """Yields the nodes of a training graph; those of one kind share what they have in common."""
    first: dict[int, TrainingNode] = {}  # of each kind
    entries: list[list[Entry]] = []  # of each node
    for number, (kind, name, inputs, control_deps) in enumerate(nodes):
        like = first.get(id(kind))
        if like is None:
            like = first[id(kind)] = _first_of(kind)
        entries.append([Entry(number, index) for index in range(len(like.outputs))])
        source = _original_number(name, like.op, original) if number in forward else None
        own = None if source is None else original.nodes[source]
        yield like.having(
            name=_readable(name, original) if own is None else own.name,
            inputs=tuple([entries[at][index] for at, index in zip(inputs[::2], inputs[1::2])]),
            control_deps=tuple(control_deps),
            attrs=like.attrs if own is None else own.attrs,
            forward=number in forward,
            original=source,
        )


def _first_of(kind: Mapping[str, Any]) -> TrainingNode:
    """A node that has nothing but what all nodes of a kind have in common."""
    return TrainingNode(
        op=kind["op"],
        name="",
        outputs=tuple(tensor_type(tuple(shape), flag) for shape, flag in zip(kind["shapes"], kind["dtypes"])),
        inplace=tuple((read, written, bool(same)) for read, written, same in kind.get("inplace", ())),
        shape_only=frozenset(kind.get("shape_only", ())),
        external=frozenset(kind["external"]),
        untouched=frozenset(kind.get("untouched", ())),
        random=bool(kind.get("random", False)),
        stateful=bool(kind.get("stateful", False)),
        mutates=bool(kind.get("mutates", False)),
    )


def _readable(name: str, original: Graph) -> str:
    """The name that MXNet would have given to a gradient node, had the user's nodes kept their names."""
    prefix = _NUMBERED.match(name)
    if not prefix or int(prefix.group(1)) >= len(original.nodes):
        return name
    return original.nodes[int(prefix.group(1))].name + name[prefix.end() - 1 :]


def _original_number(name: str, op: str, original: Graph) -> int | None:
    if not _NUMBER.fullmatch(name):
        return None  # a node that MXNet added to the forward graph, as the copy of an output used twice
    number = int(name[1:])
    if number >= len(original.nodes) or (op == VARIABLE) != original.nodes[number].is_variable:
        raise GraphError(f"MXNet's training graph holds a node {name} ({op}) that the symbol does not have")
    return number
