"""A gradient rule: the operator that takes the place of a gradient of MXNet's, and the arrays that it reads."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Source(Enum):
    """The place where a gradient finds an input; its value is the letter for it in texts for the native hook."""

    GRADIENT = ""  # among the inputs of the gradient that it takes the place of
    FORWARD = "f"  # among the outputs of the forward node
    SUM = "s"  # the last other term of the sum that the gradient is a term of (`echo.ir.split_gradients`)


class Read(NamedTuple):
    """One input of a gradient: where it is found, and at which position; a term of a sum has none."""

    source: Source
    position: int = 0

    @property
    def text(self) -> str:
        """The text that the native hook reads."""
        return self.source.value if self.source is Source.SUM else f"{self.source.value}{self.position}"

    @staticmethod
    def parse(text: str) -> Read:
        """The inverse of `text`."""
        if text == Source.SUM.value:
            return Read(Source.SUM)
        source = Source.FORWARD if text.startswith(Source.FORWARD.value) else Source.GRADIENT
        return Read(source, int(text[len(source.value) :]))


_INEXACT = ("_backward_Activation", "_backward_tanh")  # from its output: last bits of some gradients differ


@dataclass(frozen=True)
class GradientRule:
    """The gradient ``before`` becomes ``after``, which reads these ``inputs``.

    As a text, for the native hook and in files: ``BEFORE>AFTER:0,2,f0`` reads the inputs 0 and 2 of BEFORE and output 0
    of the forward node. With an ``s`` among the inputs, AFTER is a second node beside BEFORE.
    """

    before: str
    after: str
    inputs: tuple[Read, ...]

    @property
    def exact(self) -> bool:
        """Whether all bits stay as they are."""
        return (self.before, self.after) != _INEXACT

    @property
    def splits(self) -> bool:
        """Whether ``after`` is a second node beside ``before``."""
        return any(read.source is Source.SUM for read in self.inputs)

    @property
    def exchange(self) -> str:
        """The pair of gradients as a text, by which the native hook is told that it may exchange them."""
        return f"{self.before}>{self.after}"

    @property
    def text(self) -> str:
        """The text that the native hook reads."""
        return f"{self.exchange}:{','.join(read.text for read in self.inputs)}"

    @staticmethod
    def parse(text: str) -> GradientRule:
        """The inverse of `text`.

        Raises:
            ValueError: it is no such text.
        """
        return _parsed(text)


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> GradientRule:
    before, _, rest = text.partition(">")
    after, _, inputs = rest.partition(":")
    return GradientRule(before, after, tuple(map(Read.parse, inputs.split(","))))


def own_inputs(*positions: int) -> tuple[Read, ...]:
    """The inputs of the gradient itself at these positions."""
    return tuple(Read(Source.GRADIENT, position) for position in positions)
