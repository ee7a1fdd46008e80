"""The kernels as their table, `echo/kernels/table.cc`, has them: tensors, types, parameters, what gradients read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

TABLE = Path(__file__).resolve().parents[1] / "echo" / "kernels" / "table.cc"
_STRING = r'"([^"]*)"'
_ROW = re.compile(rf"\{{{_STRING},\s*{_STRING},\s*{_STRING},\s*{_STRING},\s*{_STRING}\}}")
_TENSOR = re.compile(r"(?P<name>[\w']+)\[(?P<axes>[^\]]*)\](?::(?P<type>\w+))?(?P<optional>\?)?")
_AXIS = re.compile(r"(\d*)([A-Za-z]*)|\(([\w*]+)\+7\)/8")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a kernel: its axes as the table writes them; its type, empty for that of the call."""

    name: str
    axes: tuple[str, ...]
    type: str
    optional: bool

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape, where the symbols of the axes have these sizes."""
        return tuple(_size(axis, dims) for axis in self.axes)


@dataclass(frozen=True)
class Kernel:
    """A row: inputs, outputs, names of parameters, and names of what NAME_grad reads."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    params: tuple[str, ...]
    reads: tuple[str, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the sizes, in the order in which the inputs name them."""
        letters = (letter for tensor in self.inputs for axis in tensor.axes for letter in re.findall("[A-Za-z]+", axis))
        return tuple(dict.fromkeys(letters))

    @property
    def without_gradient(self) -> tuple[int, ...]:
        """The outputs whose gradients are not read."""
        return tuple(number for number, one in enumerate(self.outputs) if f"d{one.name}" not in self.reads)

    @property
    def read_in_backward(self) -> tuple[int, ...]:
        """The arrays that the gradient reads, without gradients: positions among the inputs, then outputs."""
        names = [one.name for one in (*self.inputs, *self.outputs)]
        return tuple(number for number, name in enumerate(names) if name in self.reads)


def _required(params: str) -> tuple[str, ...]:
    """The parameters that a call has to give: the table marks others with a question mark."""
    return tuple(name for name in params.split() if not name.endswith("?"))


def parse(text: str) -> dict[str, Kernel]:
    """The kernels by name, in the order of the table's text.

    Raises:
        ValueError: the text has no rows, or a tensor in it is written in another way.
    """
    rows = _ROW.findall(re.sub(r'"\s*\n\s*"', "", text))
    if not rows:
        raise ValueError("expected rows of kernels, found none")
    return {
        name: Kernel(name, _tensors(inputs), _tensors(outputs), _required(params), tuple(reads.split()))
        for name, inputs, outputs, params, reads in rows
    }


def _tensors(text: str) -> tuple[Tensor, ...]:
    found = []
    for word in text.split():
        match = _TENSOR.match(word)
        if match is None:
            raise ValueError(f"expected a tensor such as x[N,H], got {word!r}")
        axes = tuple(match["axes"].split(","))
        found.append(Tensor(match["name"], axes, match["type"] or "", match["optional"] is not None))
    return tuple(found)


def _size(axis: str, dims: Mapping[str, int]) -> int:
    match = _AXIS.fullmatch(axis)
    if match is None:
        raise ValueError(f"expected an axis such as 4H, got {axis!r}")
    factor, symbol, bits = match.groups()
    if bits:
        return (math.prod(dims[symbol] for symbol in bits.split("*")) + 7) // 8
    return int(factor or 1) * (dims[symbol] if symbol else 1)


KERNELS: Mapping[str, Kernel] = parse(TABLE.read_text(encoding="utf-8"))
