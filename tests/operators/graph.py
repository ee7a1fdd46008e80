"""The graph of a test while it is built, and what is around the operator under test."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np

from echo.frontend.symbols import load

UNDER = "under"  # the name of the operator under test
Shape = Tuple[int, ...]
Draw = Callable[[np.random.RandomState, Shape], Any]


class Ref(NamedTuple):
    """Output ``index`` of node ``node``."""

    node: int
    index: int = 0


@dataclass(frozen=True)
class Setting:
    """The surroundings of the operator.

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
