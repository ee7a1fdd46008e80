"""One operator with attributes and inputs, written as short as a table wants it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Sequence

if TYPE_CHECKING:
    from tests.operators.graph import Built, Ref

_SPEC = re.compile(r"(x|p|u|g|b|i|j|k|w|v|a|l|spd|tri)(\d*)(?::([\dC]+(?:x[\dC]+)*))?")
DEFAULT = "4x12"


@dataclass(frozen=True)
class Input:
    """An input of the operator.

    Attributes:
        kind: of its values. "x" of both signs, "p" positive, "u" in (-0.9, 0.9), "g" above 1, "b" 0 or 1; "i", "j",
            "k" whole numbers below ``limit`` as float, int32, int64; "w" a parameter, "v" one that is always a
            variable, "a" an auxiliary state, "l" labels below ``limit``; "spd" symmetric positive definite, "tri" lower
            triangular matrices; "=" these ``values``.
        axes: its shape; "C" stands for the number of channels.
    """

    kind: str
    axes: tuple[Any, ...]
    limit: int = 0
    values: tuple[Any, ...] = ()
    dtype: str = ""

    def shape_of(self, channels: int) -> tuple[int, ...]:
        return tuple(channels if axis == "C" else axis for axis in self.axes)


def fixed(values: Sequence[Any], dtype: str = "") -> Input:
    """An input that is always the same; nested tuples."""
    shape = []
    inner: Any = values
    while isinstance(inner, tuple):
        shape.append(len(inner))
        inner = inner[0]
    return Input("=", tuple(shape), values=tuple(values), dtype=dtype)


@dataclass(frozen=True)
class Case:
    """An operator under test; ``fixed`` inputs stand at the places of "=" in the text of its inputs."""

    op: str
    inputs: tuple[Input, ...]
    attrs: tuple[tuple[str, Any], ...] = field(default=())
    graphs: tuple[Any, ...] = field(default=(), compare=False)  # subgraphs of control flow, as NNVM's JSON values
    outputs: tuple[tuple[int, ...], ...] = ()  # shapes that MXNet does not infer before the operator has run

    def under(self, built: Built, inputs: Sequence[Ref]) -> Ref:
        ref = built.add(self.op, "under", inputs, **dict(self.attrs))
        if self.graphs:
            built.nodes[-1]["subgraphs"] = list(self.graphs)
        return ref

    @property
    def is_image(self) -> bool:
        """Whether an input is a batch of images of any number of channels."""
        return any(given.kind == "x" and len(given.axes) == 4 for given in self.inputs)

    @property
    def has_channels(self) -> bool:
        return any("C" in given.axes for given in self.inputs)

    def __str__(self) -> str:
        shapes = " ".join(f"{given.kind}:{'x'.join(map(str, given.axes))}" for given in self.inputs)
        return f"{self.op}({shapes}; {', '.join(f'{key}={value}' for key, value in self.attrs)})"


def case(op: str, inputs: str = "x", *constants: Input, graphs: tuple[Any, ...] = (), **attrs: Any) -> Case:
    """A case from texts such as "x:4x12 w:7x12 w:7"."""
    given, rest = [], list(constants)
    for text in inputs.split():
        if text == "=":
            given.append(rest.pop(0))
            continue
        found = _SPEC.fullmatch(text)
        assert found, f"{op}: cannot read {text!r}"
        axes = tuple(axis if axis == "C" else int(axis) for axis in (found[3] or DEFAULT).split("x"))
        given.append(Input(found[1], axes, int(found[2] or 0)))
    return Case(op, tuple(given), tuple(attrs.items()), graphs)


def each(ops: str, inputs: str = "x", *constants: Input, **attrs: Any) -> list[Case]:
    """The same case of several operators."""
    return [case(op, inputs, *constants, **attrs) for op in ops.split()]
