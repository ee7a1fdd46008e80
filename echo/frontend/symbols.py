"""Symbols as graphs, and the files in which they come."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.symbol import Symbol

from echo.errors import GraphError, OptionError, ShapeError, UnsupportedError, without_places
from echo.ir.graph import Entry, Graph, Node
from echo.ir.op_spec import HOOK_ATTRIBUTES, MIRROR_ATTRIBUTE, is_true
from echo.ir.training_node import FLAGS, TensorType, tensor_type
from echo.plans.options import items_of
from echo.system.files import read_json

# Symbols from files.

_NEXT = 2  # the major version whose symbols have operators that 1.9.1 does not know


def load_symbol(path: Path) -> mx.sym.Symbol:
    """A symbol saved as JSON.

    Raises:
        GraphError: the file is not one; the message names it.
        OSError: it cannot be read.
    """
    value: Any = None
    try:
        value = read_json(path, strict=False)  # control characters in texts MXNet writes as they are
        return symbol_of(Graph.from_json(value))
    except (ValueError, GraphError) as error:
        raise GraphError(f"{path} is not a symbol saved by MXNet as JSON: {error}") from error
    except mx.MXNetError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]  # the last one says what is wrong
        why = lines[-1] if lines else type(error).__name__
        raise GraphError(f"{path}{_newer(value)}: MXNet cannot load it: {why}") from error


def _newer(value: Any) -> str:
    """The version of MXNet that saved a symbol, in words, where that is 2.0 or later."""
    try:
        number = int(value["attrs"]["mxnet_version"][1])
    except (KeyError, IndexError, TypeError, ValueError):  # older ones do not say
        return ""
    major, rest = divmod(number, 10000)
    return f" was saved by MXNet {major}.{rest // 100}.{rest % 100}" if major >= _NEXT else ""


# MXNet symbols to graphs and back, with the shapes and types that MXNet infers.

_ESCAPE = re.compile(r"((?<!\\)(?:\\\\)*)\\u([0-9a-f]{4})")
_GRAD_REQS = ("write", "add", "null")
_SPARSE = "_contrib_SparseEmbedding"
_STORAGE = re.compile(r"storage[ _]types?\b|stype", re.IGNORECASE)  # in MXNet's errors
_OPERATOR = re.compile(r"\boperator = (\w+)")
_TAKEN = {"self", "partial"}  # parameters of MXNet's functions that infer, which take arrays as keywords


def text_of(symbol: mx.sym.Symbol) -> str:
    """The symbol as JSON. MXNet's default leaves the casts of mixed precision out, and leaks a copy of the graph."""
    return str(Symbol.tojson(symbol, remove_amp_cast=False))


def graph_of(symbol: mx.sym.Symbol) -> Graph:
    """The symbol as a graph: all attributes, auxiliary inputs, control dependencies and subgraphs kept."""
    return graph_from(text_of(symbol))


def graph_from(text: str) -> Graph:
    """The graph of a symbol's JSON."""
    return Graph.from_json(json.loads(text, strict=False))  # MXNet writes control characters as they are


def graph_with(*nodes: Node, heads: Sequence[int] = (-1,)) -> Graph:
    """A graph of echo's own, whose outputs are those of some of these nodes, of the last one by default.

    Symbols are made of it without ``mx.sym.*``, which programs replace (`amp.init` adds casts) and scopes of the
    program decorate.
    """
    return Graph.of(nodes, (Entry(number % len(nodes)) for number in heads))


def symbol_of(graph: Graph) -> mx.sym.Symbol:
    return _loaded(graph.to_text())


def numbered_symbol(graph: Graph) -> mx.sym.Symbol:
    """The graph as a symbol whose nodes are named by their numbers: names are free for the user to repeat."""
    return _loaded(graph.to_text(numbered=True))


def number_of(name: str) -> int:
    """The number of the node after which `numbered_symbol` named an array."""
    return int(name[1:].partition("_")[0])


def with_attrs(symbol: mx.sym.Symbol, graph: Graph, marked: Graph) -> mx.sym.Symbol | None:
    """A copy of the `numbered_symbol` of a graph, with the attributes that nodes of ``marked`` have on top.

    None where the two graphs differ in anything else. Takes a third of the time of the way through JSON.
    """
    if len(marked.nodes) != len(graph.nodes) or marked.heads != graph.heads:
        return None
    added = {number: node for number, node in enumerate(marked.nodes) if node is not graph.nodes[number]}
    for number, node in added.items():
        original = graph.nodes[number]
        if not original.attrs.items() <= node.attrs.items() or node._with(attrs=original.attrs) != original:
            return None
    copy = Symbol.__deepcopy__(symbol, None)
    inner = copy.get_internals()
    first: dict[int, int] = {}
    for place, name in enumerate(inner.list_outputs() if added else ()):
        first.setdefault(number_of(name), place)
    for number, node in added.items():
        new = {name: text for name, text in node.attrs.items() if graph.nodes[number].attrs.get(name) != text}
        inner[first[number]]._set_attr(**new)
    return copy


def load(value: Any) -> mx.sym.Symbol:
    """A symbol from NNVM's JSON value."""
    return _loaded(json.dumps(value, ensure_ascii=False))


def _loaded(text: str) -> mx.sym.Symbol:
    """A symbol from NNVM's JSON. MXNet's reader knows no \\u escapes: every character is written as it is."""
    if "\\u" in text:  # seldom, and the search for them takes longer than the rest
        text = _ESCAPE.sub(lambda match: match.group(1) + chr(int(match.group(2), 16)), text)
    return mx.sym.load_json(text)


@functools.lru_cache(maxsize=256)
def type_name(dtype: Any) -> str:
    """MXNet's name of a type; numpy has none for bfloat16, which MXNet shows as a record of two bytes."""
    numpy_type = np.dtype(dtype)
    return "bfloat16" if numpy_type.names == ("bfloat16",) else numpy_type.name


@dataclass(frozen=True)
class Binding:
    """The facts of a bind that planning needs: shape and numpy type of each argument and auxiliary state, by position.

    ``grad_req`` is "write", "add" or "null" for each argument. ``sparse``: the arguments whose gradients MXNet computes
    as row_sparse arrays.
    """

    arg_shapes: tuple[tuple[int, ...], ...]
    arg_types: tuple[Any, ...]
    aux_shapes: tuple[tuple[int, ...], ...]
    aux_types: tuple[Any, ...]
    grad_req: tuple[str, ...]
    sparse: frozenset[int] = frozenset()

    @staticmethod
    def of_arrays(
        args: Sequence[Any], aux: Sequence[Any], grad_req: Sequence[str], sparse: Iterable[int] = ()
    ) -> Binding:
        """Returns the binding that these existing arrays make."""
        return Binding(
            tuple(array.shape for array in args),
            tuple(array.dtype for array in args),
            tuple(array.shape for array in aux),
            tuple(array.dtype for array in aux),
            tuple(grad_req),
            frozenset(sparse),
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """A hashable value that is equal for binds that may share a plan."""
        types = tuple(type_name(dtype) for dtype in self.arg_types + self.aux_types)
        return (self.arg_shapes, self.aux_shapes, types, self.grad_req)


def infer_binding(
    symbol: mx.sym.Symbol,
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, Any] | None = None,
    grad_req: Any = "write",
) -> Binding:
    """Infers every shape and type from those of some arguments, as ``simple_bind`` does.

    Raises:
        ShapeError: a shape or type stays unknown; the message names the arguments.
    """
    names = symbol.list_arguments()
    unknown_names = sorted(set(shapes) - set(names) - set(symbol.list_auxiliary_states()))
    if unknown_names:
        raise ShapeError(f"shapes are given for {unknown_names}, expected some of the arguments {names}")
    try:
        arg_shapes, _, aux_shapes = infer_shapes(symbol, shapes)
    except mx.MXNetError as error:
        text = _unknown_sizes(shapes) or f"MXNet cannot infer the shapes from {dict(shapes)}: {_reason(error)}"
        raise ShapeError(text) from error
    if arg_shapes is None:
        raise ShapeError(_unknown_sizes(shapes) or _missing_shapes(symbol, shapes))
    attributes = symbol.attr_dict()
    arg_types, aux_types = _types(symbol, names, attributes, shapes, types)
    return Binding(
        tuple(map(tuple, arg_shapes)),
        tuple(arg_types),
        tuple(map(tuple, aux_shapes)),
        tuple(aux_types),
        grad_reqs(names, grad_req),
        sparse_gradients(symbol, attributes),
    )


def infer_shapes(symbol: mx.sym.Symbol, shapes: Mapping[str, Any], partial: bool = False) -> tuple[Any, Any, Any]:
    """Returns MXNet's shapes of arguments, outputs and auxiliary states; None without ``partial`` if one is unknown.

    Prints no warning, as ``infer_shape`` would, and allows arrays of any name.
    """
    symbol, known = _without_clashes(symbol, shapes)
    found: tuple[Any, Any, Any] = symbol._infer_shape_impl(partial, **known)
    return found


def infer_types(symbol: mx.sym.Symbol, types: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """As `infer_shapes`, for numpy types."""
    symbol, known = _without_clashes(symbol, types)
    found: tuple[Any, Any, Any] = symbol._infer_type_impl(False, **known)
    return found


def _without_clashes(symbol: mx.sym.Symbol, known: Mapping[str, Any]) -> tuple[mx.sym.Symbol, Mapping[str, Any]]:
    """Renames all arrays if one is named like a parameter of the function that would take it as a keyword."""
    if not _TAKEN & known.keys():
        return symbol, known
    graph = graph_of(symbol)
    renamed = symbol_of(graph.with_names([f"_{node.name}" for node in graph.nodes]))
    return renamed, {f"_{name}": value for name, value in known.items()}


def sparse_gradients(
    symbol: mx.sym.Symbol, attributes: Mapping[str, Mapping[str, str]] | None = None
) -> frozenset[int]:
    """The arguments with row_sparse gradients: weights of an Embedding with ``sparse_grad`` or a SparseEmbedding.

    ``attributes`` are those of ``symbol.attr_dict()``, where they are known.
    """
    attributes = symbol.attr_dict() if attributes is None else attributes
    sparse = any(is_true(attrs, "sparse_grad") for attrs in attributes.values())
    embeds = any("output_dim" in attrs for attrs in attributes.values())
    if not sparse and (not embeds or _SPARSE not in text_of(symbol)):
        return frozenset()
    graph = graph_of(symbol)
    embeddings = [node for node in graph.nodes if _is_sparse(node) and len(node.inputs) > 1]
    weights = {graph.nodes[node.inputs[1].node].name for node in embeddings}
    return frozenset(place for place, name in enumerate(symbol.list_arguments()) if name in weights)


def _is_sparse(node: Node) -> bool:
    return is_true(node.attrs, "sparse_grad") or node.op == _SPARSE


def why_left_alone(graph: Graph, error: str) -> str:
    """Why echo leaves a graph alone that MXNet does not bind without memory, with this error; empty if it should not.

    MXNet infers the storage of sparse gradients, and of what goes through operators with graphs of their own, from the
    arrays of the user's call.
    """
    inner = next((node for node in graph.nodes if node.subgraphs), None)
    if inner is not None:
        return f"MXNet binds {inner.op} ({inner.name!r}) only with the arrays of a call"
    if _STORAGE.search(error):
        operator = _OPERATOR.search(error)
        place = f" of {operator[1]}" if operator else ""
        return f"MXNet does not know the storage of sparse arrays{place} before a call"
    return ""


def without_marks(symbol: mx.sym.Symbol, graph: Graph, cached: bool = False) -> tuple[mx.sym.Symbol, Graph]:
    """The symbol and its graph without marks of an earlier plan, which a saved symbol may hold: the hook would obey.

    For a CachedOp (``cached``) also without MXNet's own mark for mirroring, which only executors obey.
    """
    bare = graph.without_attrs(*HOOK_ATTRIBUTES, *([MIRROR_ATTRIBUTE] if cached else []))
    return (symbol if bare is graph else symbol_of(bare)), bare


def types_of(graph: Graph, binding: Binding, symbol: mx.sym.Symbol | None = None) -> dict[Entry, TensorType]:
    """The shape and type of each visible entry of a graph that is bound like this; ``symbol`` is its numbered one.

    Raises:
        UnsupportedError: MXNet does not infer them all, as after a while_loop; the message names the first node.
    """
    symbol = numbered_symbol(graph) if symbol is None else symbol
    arguments = list(zip(symbol.list_arguments(), binding.arg_shapes, binding.arg_types))
    states = list(zip(symbol.list_auxiliary_states(), binding.aux_shapes, binding.aux_types))
    inner = symbol.get_internals()
    shapes_of_inputs = {name: shape for name, shape, _ in [*arguments, *states]}
    shapes = infer_shapes(inner, shapes_of_inputs)[1]
    # of the states, too: their variables keep the type that they had when the graph was made, and a block may be cast
    types_of_inputs = {name: dtype for name, _, dtype in [*arguments, *states]}
    types = infer_types(inner, types_of_inputs)[1]
    if shapes is None or types is None:
        raise UnsupportedError(_unknown_node(graph, inner, shapes_of_inputs))
    tensors: dict[Entry, TensorType] = {}
    seen: Counter[int] = Counter()
    for name, shape, dtype in zip(inner.list_outputs(), shapes, types):
        number = number_of(name)
        tensors[Entry(number, seen[number])] = tensor_type(tuple(shape), FLAGS[type_name(dtype)])
        seen[number] += 1
    return tensors


def _unknown_node(graph: Graph, inner: mx.sym.Symbol, shapes_of_inputs: Mapping[str, tuple[int, ...]]) -> str:
    """Describes the first node of a graph whose shape MXNet cannot infer; ``inner`` is the symbol of the internals."""
    for name, shape in zip(inner.list_outputs(), infer_shapes(inner, shapes_of_inputs, True)[1]):
        node = graph.nodes[number_of(name)]
        if not node.is_variable and (not shape or {0, -1} & set(shape)):
            return f"MXNet does not know the shape of {node.name!r} ({node.op}) before it runs"
    return "MXNet does not infer the type of every node"


def _types(
    symbol: mx.sym.Symbol,
    names: Iterable[str],
    attributes: Mapping[str, Mapping[str, str]],
    inputs: Iterable[str],
    types: Mapping[str, Any] | None,
) -> tuple[Sequence[Any], Sequence[Any]]:
    """The numpy types of the arguments and of the auxiliary states.

    ``names`` are those of the arguments, ``attributes`` those of ``symbol.attr_dict()``. Without ``types`` all
    arguments are float32 unless a variable says otherwise, which is the rule of ``simple_bind``; or where MXNet refuses
    that, the ``inputs`` alone, as in a Module; or what follows from the variables that say it.

    Raises:
        ShapeError: MXNet refuses the types, or one stays unknown.
    """
    default = {name: np.float32 for name in names if "__dtype__" not in attributes.get(name, {})}
    in_module = {name: np.float32 for name in inputs if name in default}
    reasons = []
    for known in (default, in_module, {}) if types is None else (types,):
        try:
            arg_types, _, aux_types = infer_types(symbol, known)
        except mx.MXNetError as error:
            reasons.append(_reason(error))
        else:
            if arg_types is not None:
                return arg_types, aux_types
    if reasons:
        raise ShapeError(f"MXNet cannot infer the types from {_type_names(types)}: {reasons[0]}")
    raise ShapeError(f"MXNet cannot infer every type from {_type_names(types)}")


def _type_names(types: Mapping[str, Any] | None) -> str:
    return "float32" if types is None else str({name: type_name(dtype) for name, dtype in types.items()})


def _reason(error: mx.MXNetError) -> str:
    """What MXNet says, after the lines of its own files."""
    return without_places(str(error).rpartition("MXNetError: ")[2])


def _unknown_sizes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Describes the first shape with a size that MXNet takes for unknown (0 or -1); empty where no shape has one."""
    unknown = [(name, shape) for name, shape in shapes.items() if {0, -1} & set(shape)]
    texts = (f"{name}: expected sizes of 1 or more (0 and -1 stand for unknown ones to MXNet), got {shape}"
             for name, shape in unknown)  # fmt: skip
    return next(texts, "")


def _missing_shapes(symbol: mx.sym.Symbol, shapes: Mapping[str, tuple[int, ...]]) -> str:
    partial, _, _ = infer_shapes(symbol, shapes, partial=True)
    missing = [name for name, shape in zip(symbol.list_arguments(), partial) if not shape or 0 in shape]
    inputs = [name for name in missing if not name.endswith(("_weight", "_bias", "_gamma", "_beta"))] or missing
    known = sorted(set(shapes) - set(missing))
    given = f"it next to {', '.join(known)}" if known else f"those of the inputs, as {inputs[0]}=(128, 50)"
    return f"the shape of {', '.join(inputs)} is unknown, expected {given}"


def grad_reqs(names: list[str], grad_req: Any) -> tuple[str, ...]:
    """MXNet's three ways to state gradient requests (one word, a list, a dictionary) as one word an argument.

    Raises:
        OptionError: another word, or not as many as there are arguments.
    """
    if isinstance(grad_req, str):
        requests = (grad_req,) * len(names)
    elif isinstance(grad_req, Mapping):
        requests = tuple(grad_req.get(name, "null") for name in names)
    else:
        requests = items_of(grad_req)
    wrong = [request for request in requests if request not in _GRAD_REQS]
    if wrong or len(requests) != len(names):
        got = repr(wrong[0]) if wrong else f"{len(requests)} for {len(names)} arguments"
        raise OptionError(f"grad_req: expected {', '.join(_GRAD_REQS)}, or one for each argument, got {got}")
    return requests
