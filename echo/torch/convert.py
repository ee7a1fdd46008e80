"""MXNet's symbols as modules of torch: a graph module with MXNet's names, made without MXNet."""

from __future__ import annotations

import functools
import json
import keyword
import operator
import os
import re
from pathlib import Path
from typing import Any, Mapping, Union

import torch
from torch import fx

from echo.errors import GraphError, UnsupportedError
from echo.ir.graph import Graph, Node
from echo.torch.attributes import Function, parameters, read_attributes
from echo.torch.operators import OPERATORS
from echo.torch.params import File, Params, read_params, tensor, write_params

Values = Union[File, Mapping[str, Any]]
# Inputs of operators that a checkpoint holds: without a value, they are no inputs of the module, but missing.
_TRAINED = frozenset({"weight", "bias", "gamma", "beta", "parameters"})
_AUXILIARY = frozenset({"moving_mean", "moving_var"})
_LABEL = "label"
_ARG, _AUX = "arg:", "aux:"


def convert(symbol: Any, arg_params: Values, aux_params: Mapping[str, Any] | None = None) -> ConvertedSymbol:
    """A module of torch that computes what a symbol of MXNet computes, forward and backward.

    ``symbol`` is the path of a ``-symbol.json`` file, its text, or a symbol of MXNet. ``arg_params`` is the path of a
    ``.params`` file, which holds the auxiliary states too, or the parameters by name: arrays of NumPy, MXNet or torch.
    Parameters and buffers (auxiliary states) have MXNet's names. All other arguments of the symbol are inputs of the
    module, by name or in the order of ``list_arguments``; labels of losses may be left out. One output is a tensor,
    several are a tuple.

    Layers of losses, such as ``SoftmaxOutput``, have their own gradients, as in MXNet: ``outputs.sum().backward()``.

    Raises:
        GraphError: the symbol or the file is malformed, or its names are not those of the symbol.
        UnsupportedError: operators or attributes have no conversion; the message names all of them.
    """
    return _converted(_graph(symbol), _values(arg_params, aux_params))


class ConvertedSymbol(fx.GraphModule):  # type: ignore[misc]  # torch is not there where types are checked
    """The graph module of a symbol; `fx.GraphModule` would be traced again where it is unpickled, and lose its mode."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.meta["symbol"], _held(self), self.training)


def _restored(symbol: str, values: Params, training: bool) -> ConvertedSymbol:
    return _converted(_graph(symbol), values).train(training)  # type: ignore[no-any-return]


def _converted(graph: Graph, values: Params) -> ConvertedSymbol:
    functions, faults = _functions(graph)
    if faults:
        raise UnsupportedError("the symbol cannot be converted to torch:\n  " + "\n  ".join(faults))
    roles = _roles(graph, functions)
    _check_names(graph, roles, values)
    root = torch.nn.Module()
    for name, value in values.values.items():
        _register(root, name, value)
    module = ConvertedSymbol(root, _Builder(graph, functions, roles, values).build())
    module.meta.update(symbol=graph.to_text(), names=tuple(values.values), numpy_shapes=values.numpy_shapes)
    return module


def _held(module: ConvertedSymbol) -> Params:
    """The values as they are now, in the order in which they were given."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return Params({name: held[name[len(_ARG) :]] for name in module.meta["names"]}, module.meta["numpy_shapes"])


def save_params(module: torch.nn.Module, path: File) -> None:
    """Writes the parameters and buffers of a converted module as a ``.params`` file, which MXNet loads.

    Raises:
        GraphError: the module was not made by `convert`.
    """
    if not isinstance(module, ConvertedSymbol):
        raise GraphError(f"expected a module that echo.torch.convert made, got {type(module).__name__}")
    write_params(path, _held(module))


# What is given ----------------------------------------------------------------------------------------------------


def _graph(symbol: Any) -> Graph:
    if hasattr(symbol, "tojson"):
        symbol = symbol.tojson()
    if isinstance(symbol, str) and symbol.lstrip().startswith("{"):
        text = symbol
    elif isinstance(symbol, (str, os.PathLike)):
        text = Path(symbol).read_text(encoding="utf-8")
    else:
        raise GraphError(f"symbol: expected a path, JSON or a symbol of MXNet, got {type(symbol).__name__}")
    try:
        return Graph.from_json(json.loads(text))
    except ValueError as error:
        raise GraphError(f"symbol: expected JSON as MXNet writes it: {error}") from error


def _values(arg_params: Values, aux_params: Mapping[str, Any] | None) -> Params:
    """The values, each with ``arg:`` or ``aux:`` before its name."""
    if isinstance(arg_params, Mapping):
        found = {name if name.startswith((_ARG, _AUX)) else _ARG + name: value for name, value in arg_params.items()}
        found.update({name if name.startswith(_AUX) else _AUX + name: value
                      for name, value in (aux_params or {}).items()})  # fmt: skip
        return Params({name: tensor(name, value) for name, value in found.items()})
    if aux_params:
        raise GraphError("aux_params: a .params file holds the auxiliary states, expected none with it")
    params = read_params(arg_params)
    bare = [name for name in params.values if not name.startswith((_ARG, _AUX))]
    if bare:
        raise GraphError(
            f"{os.fspath(arg_params)}: expected names that start with arg: or aux:, as Module.save_checkpoint and "
            f"HybridBlock.export write them, got {_listed(bare)}"
        )
    return params


def _register(root: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    plain = name[len(_ARG) :]
    try:
        if name.startswith(_AUX):
            root.register_buffer(plain, value)
        else:
            made = isinstance(value, torch.nn.Parameter)
            root.register_parameter(plain, value if made else torch.nn.Parameter(value, value.is_floating_point()))
    except KeyError as error:
        raise GraphError(f"{plain}: torch takes no parameter of this name: {error}") from error


# What the symbol needs --------------------------------------------------------------------------------------------


def _functions(graph: Graph) -> tuple[dict[int, tuple[Function, dict[str, Any]]], list[str]]:
    """The function and the keywords of each node, by number, and what cannot be converted."""
    found, faults = {}, []
    for number, node in enumerate(graph.nodes):
        if node.is_variable:
            continue
        if node.op not in OPERATORS:
            faults.append(f"{node.name}: operator {node.op} is unknown{_unknown(node)}")
            continue
        function = OPERATORS[node.op]
        keywords, wrong = read_attributes(function, node.attrs)
        wrong += _misfits(graph, node, function)
        faults += [f"{node.name}: {node.op}: {fault}" for fault in wrong]
        if isinstance(function, functools.partial):
            keywords = {**function.keywords, **keywords}
            function = function.func
        found[number] = function, keywords
    return found, faults


def _unknown(node: Node) -> str:
    if node.op == "Custom":
        return f" (op_type={node.attrs.get('op_type')!r}: it is a program of the user's)"
    return " (control flow)" if node.subgraphs else ""


def _misfits(graph: Graph, node: Node, function: Function) -> list[str]:
    """Inputs and outputs that the function of an operator does not have."""
    inputs = [item for item in parameters(function).values() if item.kind is not item.KEYWORD_ONLY]
    needed = sum(item.default is item.empty and item.kind is not item.VAR_POSITIONAL for item in inputs)
    most = len(node.inputs) if any(item.kind is item.VAR_POSITIONAL for item in inputs) else len(inputs)
    faults = []
    if not needed <= len(node.inputs) <= most:
        faults.append(f"expected {needed} to {most} inputs, got {len(node.inputs)}")
    for entry in node.inputs:
        source = graph.nodes[entry.node]
        if entry.index and source.op in OPERATORS and not _gives_several(OPERATORS[source.op]):
            faults.append(f"reads output {entry.index} of {source.op} {source.name!r}, which has one in torch")
    return faults


def _gives_several(function: Function) -> bool:
    plain = function.func if isinstance(function, functools.partial) else function
    return str(getattr(plain, "__annotations__", {}).get("return")).startswith("tuple")


def _roles(graph: Graph, functions: Mapping[int, tuple[Function, Any]]) -> dict[int, set[str]]:
    """For each variable, by number, the names of the parameters of functions that read it."""
    roles: dict[int, set[str]] = {number: set() for number in graph.arg_nodes}
    for number, (function, _) in functions.items():
        for entry, item in zip(graph.nodes[number].inputs, parameters(function).values()):
            if entry.node in roles:
                roles[entry.node].add(item.name)
    return roles


def _check_names(graph: Graph, roles: Mapping[int, set[str]], values: Params) -> None:
    states = {graph.nodes[number].name for number, names in roles.items() if names & _AUXILIARY}
    arguments = set(graph.variable_names) - states
    trained = {graph.nodes[number].name for number, names in roles.items() if names & _TRAINED}
    given = set(values.values)
    missing = [_ARG + name for name in sorted(trained) if _ARG + name not in given]
    missing += [_AUX + name for name in sorted(states) if _AUX + name not in given]
    extra = sorted(given - {_ARG + name for name in arguments} - {_AUX + name for name in states})
    if missing or extra:
        both = [f"without a value: {_listed(missing)}"] * bool(missing)
        both += [f"not in the symbol: {_listed(extra)}"] * bool(extra)
        raise GraphError("expected the parameters and auxiliary states of the symbol, got names " + "; ".join(both))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


# The graph --------------------------------------------------------------------------------------------------------


class _Builder:
    """Makes the graph of one module."""

    def __init__(self, graph: Graph, functions: Mapping[int, tuple[Function, dict[str, Any]]],
                 roles: Mapping[int, set[str]], values: Params) -> None:  # fmt: skip
        self._graph, self._functions, self._roles = graph, functions, roles
        self._held = {name[len(_ARG) :] for name in values.values}
        self._made = fx.Graph()
        self._several = {number for number, (function, _) in functions.items() if _gives_several(function)}
        self._nodes: dict[int, fx.Node] = {}

    def build(self) -> fx.Graph:
        self._add_variables()
        training = self._made.create_node("get_attr", "training")
        made = sorted(self._nodes.values(), key=lambda node: node.op != "get_attr")
        supplied = {"training": training, "like": made[0] if made else None}  # parameters know the device
        for number, (function, keywords) in self._functions.items():
            node = self._graph.nodes[number]
            more = {name: supplied[name] for name in supplied if name in parameters(function)}
            inputs = tuple(self._value(entry.node, entry.index) for entry in node.inputs)
            self._nodes[number] = self._made.create_node("call_function", function, inputs, {**keywords, **more},
                                                         name=node.name)  # fmt: skip
        outputs = tuple(self._value(entry.node, entry.index) for entry in self._graph.heads)
        self._made.output(outputs[0] if len(outputs) == 1 else outputs)
        if not training.users:
            self._made.erase_node(training)
        return self._made

    def _add_variables(self) -> None:
        """Inputs first, in their order; from the last one that is no label on, labels may be left out."""
        numbers = sorted(self._graph.arg_nodes)
        inputs = [number for number in numbers if self._graph.nodes[number].name not in self._held]
        needed = max((at + 1 for at, number in enumerate(inputs) if self._roles[number] != {_LABEL}), default=0)
        for at, number in enumerate(inputs):
            default = () if at < needed else (None,)
            self._nodes[number] = self._made.placeholder(_identifier(self._graph.nodes[number].name), None, *default)
        for number in sorted(set(numbers) - set(inputs)):
            self._nodes[number] = self._made.get_attr(self._graph.nodes[number].name)

    def _value(self, number: int, index: int) -> fx.Node:
        if number not in self._several:
            return self._nodes[number]
        return self._made.call_function(operator.getitem, (self._nodes[number], index))


def _identifier(name: str) -> str:
    """The name of an input as Python takes it."""
    plain = re.sub(r"\W", "_", name)
    return f"_{plain}" if plain[:1].isdigit() or keyword.iskeyword(plain) else plain
