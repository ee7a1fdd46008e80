"""A small training graph around one operator: maps before it, readers behind it, and later maps of the same sizes.

Every input of the operator under test is made by light operators, so that it is no variable and can be computed again.
Behind the operator come its readers, and behind those *fillers*: maps of each size that the operator reads or writes.
They take over every chunk of memory that a recomputed map gives back, in the forward pass and in the backward pass,
before the operator's gradient runs: what is read at an old address is something else by then.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np

from echo.frontend.symbols import load
from echo.graph import Entry
from echo.kernels.operators import fused_node
from tests.operators.case import Case, Input

UNDER = "under"  # the name of the operator under test
Shape = Tuple[int, ...]
Draw = Callable[[np.random.RandomState, Shape], Any]


class Ref(NamedTuple):
    """Output ``index`` of node ``node``."""

    node: int
    index: int = 0


@dataclass(frozen=True)
class Setting:
    """What is around the operator.

    Attributes:
        producer: of its inputs: "light" operators, "conv" with BatchNorm and relu, "plain conv", or "dense".
        masked: a Dropout is between those and the operator; "packed": its mask is kept as bits.
        consumer: what reads its outputs: "light" operators, a "heavy" one, or of images a "pool".
        shared: another operator, whose gradient needs them, reads the inputs too.
        channels: of images.
        dtype: of all maps.
    """

    producer: str = "light"
    masked: str = ""
    consumer: str = "light"
    shared: bool = False
    channels: int = 8
    dtype: str = "float32"

    def packed(self) -> Setting:
        """The same with masks as bits."""
        return replace(self, masked="packed")

    def __str__(self) -> str:
        words = [self.producer, self.masked, self.consumer, "shared" * self.shared, str(self.channels), self.dtype]
        return " ".join(word for word in words if word)


@dataclass
class Built:
    """A graph: its symbol's JSON, the shape and the values of each variable, and the nodes of each role."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    heads: list[Ref] = field(default_factory=list)
    variables: dict[str, tuple[Shape, str, Draw]] = field(default_factory=dict)
    untrained: set[str] = field(default_factory=set)
    roles: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, op: str, name: str, inputs: Sequence[Ref] = (), **attrs: Any) -> Ref:
        node = {"op": op, "name": name, "inputs": [[*ref, 0] for ref in inputs]}
        node["attrs"] = {key: str(value) for key, value in attrs.items()}
        self.nodes.append(node)
        return Ref(len(self.nodes) - 1)

    def variable(self, name: str, shape: Shape, draw: Draw, dtype: str = "float32", trained: bool = True) -> Ref:
        self.variables[name] = (shape, dtype, draw)
        if not trained:
            self.untrained.add(name)
        return self.add("null", name, __shape__=shape, __dtype__=_flag(dtype))

    @property
    def is_random(self) -> bool:
        """Whether an operator draws random numbers, which starts with a seed then."""
        return any(word in node["op"] for node in self.nodes for word in _RANDOM)

    def symbol(self, marks: Mapping[str, Mapping[str, str]] = {}) -> mx.sym.Symbol:
        """The symbol, with these attributes on these nodes; those of "*" are for every operator but the user's own."""
        nodes = [
            {**node, "attrs": {**node["attrs"], **marks.get("*", {}), **marks.get(node["name"], {})}}
            if node["op"] not in ("null", "Custom") else node
            for node in self.nodes
        ]  # fmt: skip
        arguments = [number for number, node in enumerate(nodes) if node["op"] == "null"]
        value = {"nodes": nodes, "arg_nodes": arguments, "heads": [[*ref, 0] for ref in self.heads],
                 "attrs": {"mxnet_version": ["int", 10901]}}  # fmt: skip
        return load(value)


_RANDOM = ("Dropout", "random", "sample", "shuffle", "RNN", "_npi_")


def _flag(dtype: str) -> int:
    return {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int64": 6, "bool": 7}[dtype]


def normal(random: np.random.RandomState, shape: Shape) -> Any:
    return random.normal(0, 1, shape)


def weights(random: np.random.RandomState, shape: Shape) -> Any:
    return random.normal(0, 0.3, shape)


def below(limit: int) -> Draw:
    return lambda random, shape: random.randint(0, limit, shape)


# Before the operator -----------------------------------------------------------------------------------------------


def _light(built: Built, name: str, shape: Shape, dtype: str) -> Ref:
    values = built.variable(f"{name}_var", shape, normal, dtype)
    built.roles["input"] += [f"{name}_exp", f"{name}_sin"]
    return built.add("sin", f"{name}_sin", [built.add("exp", f"{name}_exp", [values])])


def _conv(built: Built, name: str, shape: Shape, normed: bool) -> Ref:
    """Maps in the layouts of oneDNN, which depend on the number of channels."""
    channels = shape[1]
    images = built.variable(f"{name}_var", (shape[0], 3, *shape[2:]), normal)
    weight = built.variable(f"{name}_weight", (channels, 3, 3, 3), weights)
    conv = built.add("Convolution", f"{name}_conv", [images, weight], kernel=(3, 3), pad=(1, 1), num_filter=channels,
                     no_bias=True)  # fmt: skip
    built.roles["heavy input"].append(f"{name}_conv")
    if not normed:
        return conv
    rest = [built.variable(f"{name}_{part}", (channels,), weights) for part in ("gamma", "beta")]
    rest += [built.variable(f"{name}_{part}", (channels,), lambda _, shape: np.ones(shape)) for part in ("mean", "std")]
    norm = built.add("BatchNorm", f"{name}_norm", [conv, *rest], fix_gamma=False)
    built.roles["input"] += [f"{name}_norm", f"{name}_relu"]
    return built.add("Activation", f"{name}_relu", [norm], act_type="relu")


def _dense(built: Built, name: str, shape: Shape) -> Ref:
    values = built.variable(f"{name}_var", (shape[0], 5), normal)
    inputs = [values, built.variable(f"{name}_weight", (shape[1], 5), weights),
              built.variable(f"{name}_bias", (shape[1],), weights)]  # fmt: skip
    built.roles["heavy input"].append(f"{name}_dense")
    return built.add("FullyConnected", f"{name}_dense", inputs, num_hidden=shape[1])


def _dropped(built: Built, name: str, map_: Ref, masked: str) -> Ref:
    if not masked:
        return map_
    built.roles["masked"].append(f"{name}_drop")
    if masked == "numbers":
        return built.add("Dropout", f"{name}_drop", [map_], p=0.4)
    ones = built.add("ones_like", f"{name}_ones", [map_])
    mask = built.add("Dropout", f"{name}_mask", [ones], p=0.4)
    bits = built.add("_echo_pack_mask", f"{name}_bits", [mask], **fused_node("pack_mask", "", [Entry(0)]).attrs)
    inputs = [map_, bits, Ref(bits.node, 1)]
    return built.add("_echo_apply_mask", f"{name}_drop", inputs, **fused_node("apply_mask", "", [Entry(0)] * 3).attrs)


# What is done with a map of values in (-1, 1), so that it is of a kind: (operator, attributes) in a row.
_TAILS: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "x": [],
    "p": [("exp", {})],
    "u": [("_mul_scalar", {"scalar": 0.9})],
    "g": [("exp", {}), ("_plus_scalar", {"scalar": 1})],
    "b": [("_greater_scalar", {"scalar": 0})],
}


def _tail(kind: Input) -> Sequence[tuple[str, Mapping[str, Any]]]:
    if kind.kind in _TAILS:
        return _TAILS[kind.kind]
    whole = [("sigmoid", {}), ("_mul_scalar", {"scalar": kind.limit}), ("floor", {})]
    return whole if kind.kind == "i" else [*whole, ("Cast", {"dtype": "int32" if kind.kind == "j" else "int64"})]


def _matrix(built: Built, name: str, map_: Ref, kind: str, shape: Shape) -> Ref:
    """Symmetric and positive definite, or lower triangular with a positive diagonal."""
    eye = np.broadcast_to(np.eye(shape[-1]), shape)
    dtype = built.variables[f"{name}_var"][1]
    unit = built.variable(f"{name}_eye", shape, lambda *_: 2 * eye, dtype, trained=False)
    names = {"spd": ("_linalg_gemm2",), "tri": ("elemwise_mul",)}[kind]
    if kind == "spd":
        map_ = built.add("_linalg_gemm2", f"{name}_{names[0]}", [map_, map_], transpose_b=True)
    else:
        lower = built.variable(f"{name}_low", shape, lambda *_: np.tril(np.ones(shape), -1), dtype, trained=False)
        map_ = built.add("elemwise_mul", f"{name}_{names[0]}", [map_, lower])
    built.roles["input"] += [f"{name}_{names[0]}", f"{name}_unit"]
    return built.add("elemwise_add", f"{name}_unit", [map_, unit])


def _input(built: Built, position: int, given: Input, setting: Setting) -> Ref:
    name, shape = f"in{position}", given.shape_of(setting.channels)
    if given.kind == "=":
        dtype = given.dtype or setting.dtype
        return built.variable(name, shape, lambda *_: np.array(given.values), dtype, trained=False)
    if given.kind == "l":
        return built.variable(name, shape, below(given.limit), setting.dtype, trained=False)
    if given.kind in "va" or (given.kind == "w" and setting.producer != "light"):
        draw: Draw = (lambda _, shape: np.ones(shape)) if given.kind == "a" else weights
        return built.variable(name, shape, draw, given.dtype or setting.dtype)
    images = given.kind == "x" and len(shape) == 4 and setting.producer in ("conv", "plain conv")
    if images:
        map_ = _conv(built, name, shape, setting.producer == "conv")
    elif given.kind == "x" and len(shape) == 2 and setting.producer == "dense":
        map_ = _dense(built, name, shape)
    else:
        map_ = _light(built, name, shape, setting.dtype)
    if given.kind == "x":
        map_ = _dropped(built, name, map_, setting.masked)
    if given.kind in ("spd", "tri"):
        return _matrix(built, name, map_, given.kind, shape)
    for step, (op, attrs) in enumerate(_tail(given if given.kind != "w" else Input("x", shape))):
        built.roles["input"].append(f"{name}_{op}{step}")
        map_ = built.add(op, f"{name}_{op}{step}", [map_], **attrs)
    return map_


# Behind it ---------------------------------------------------------------------------------------------------------


def _read(built: Built, output: Ref, shape: Shape, kind: str, setting: Setting, number: int, blocked: bool) -> Ref:
    """The mean of what readers make of an output."""
    name = f"out{number}"
    if blocked:
        output = built.add("BlockGrad", f"{name}_block", [output])
    if kind != setting.dtype:
        output = built.add("Cast", f"{name}_cast", [output], dtype=setting.dtype)
    if setting.consumer == "pool" and len(shape) == 4 and min(shape[2:]) > 1:
        output = built.add("Pooling", f"{name}_pool", [output], kernel=(2, 2), stride=(2, 2), pool_type="max")
    elif setting.consumer == "heavy":
        if len(shape) == 4:
            weight = built.variable(f"{name}_weight", (8, shape[1], 3, 3), weights)
            output = built.add("Convolution", f"{name}_conv", [output, weight], kernel=(3, 3), pad=(1, 1), num_filter=8,
                               no_bias=True)  # fmt: skip
        else:
            size = int(np.prod(shape[1:]))
            weight = built.variable(f"{name}_weight", (6, size), weights)
            output = built.add("FullyConnected", f"{name}_dense", [output, weight], num_hidden=6, no_bias=True)
    else:
        built.roles["reader"] += [f"{name}_mul", f"{name}_tanh", f"{name}_sin"]
        output = built.add("_mul_scalar", f"{name}_mul", [output], scalar=0.5)
        output = built.add("sin", f"{name}_sin", [built.add("tanh", f"{name}_tanh", [output])])
        probe = built.variable(f"{name}_probe", shape, normal, setting.dtype)
        output = built.add("elemwise_mul", f"{name}_product", [output, probe])
    return built.add("mean", f"{name}_mean", [output])


def _filler(built: Built, shape: Shape, mean: Ref, number: int, dtype: str) -> Ref:
    """Some maps of this shape that depend on the mean, and their mean."""
    name = f"fill{number}"
    scalar = built.add("Reshape", f"{name}_scalar", [mean], shape=(1,) * len(shape)) if len(shape) != 1 else mean
    map_ = built.variable(f"{name}_var", shape, normal, dtype)
    map_ = built.add("broadcast_add", f"{name}_add", [map_, scalar])
    for step in range(4):
        map_ = built.add("exp", f"{name}_exp{step}", [map_])
        map_ = built.add("sin", f"{name}_sin{step}", [map_])
        map_ = built.add("_mul_scalar", f"{name}_mul{step}", [map_], scalar=1.5)
    return built.add("mean", f"{name}_mean", [map_])


@functools.lru_cache(maxsize=None)
def outputs_of(case: Case, setting: Setting) -> tuple[tuple[Shape, str], ...]:
    """Shapes and types of the operator's outputs, as MXNet infers them."""
    if case.outputs:
        return tuple((shape, setting.dtype) for shape in case.outputs)
    built = Built()
    case.under(built, [_input(built, position, given, setting) for position, given in enumerate(case.inputs)])
    built.heads = [Ref(len(built.nodes) - 1)]
    inner = built.symbol().get_internals()
    _, shapes, _ = inner._infer_shape_impl(False)
    _, types, _ = inner.infer_type()
    if shapes is None:
        raise ValueError(f"{case}: MXNet does not infer the shapes")
    found = [(tuple(shape), np.dtype(kind).name) for name, shape, kind in zip(inner.list_outputs(), shapes, types)
             if name.startswith(f"{UNDER}_")]  # fmt: skip
    return tuple(found)


def build(case: Case, setting: Setting, blocked: bool = False) -> Built:
    """The graph. ``blocked``: no gradient goes through the operator, which has none."""
    outputs = outputs_of(case, replace(setting, masked="numbers" if setting.masked else ""))
    built = Built()
    inputs = [_input(built, position, given, setting) for position, given in enumerate(case.inputs)]
    node = case.under(built, inputs)
    means = [
        _read(built, Ref(node.node, index), *outputs[index], setting, index, blocked)
        for index in range(len(outputs))
    ]
    maps = {given.shape_of(setting.channels) for given in case.inputs if given.kind not in "=lav"}
    for position, (given, ref) in enumerate(zip(case.inputs, inputs)):
        if (setting.shared or blocked) and given.kind in ("x", "p", "u", "g", "spd", "tri"):
            name = f"beside{position}"
            probe = built.variable(f"{name}_probe", given.shape_of(setting.channels), normal, setting.dtype)
            product = built.add("elemwise_mul", f"{name}_product", [ref, probe])
            means.append(built.add("mean", f"{name}_mean", [product]))
    mean = means[0]
    for number, other in enumerate(means[1:]):
        mean = built.add("elemwise_add", f"mean{number}", [mean, other])
    built.heads = [mean] if case.outputs else []
    if case.outputs:  # then MXNet plans no memory for what depends on them
        mean = built.variable("start", (1,), normal, setting.dtype)
    for number, shape in enumerate(sorted(maps | {shape for shape, _ in outputs})):
        mean = _filler(built, shape, mean, number, setting.dtype)
    built.heads.append(mean)
    return built
