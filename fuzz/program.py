"""Random programs as data: lines of code over earlier lines, so that they can be shrunk, stored and printed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Iterator, Tuple

Shape = Tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """``code`` with ``{0}``, ``{1}``, ... for the lines at ``inputs``; the shape and type of what comes out.

    The shape is None for what has several outputs.
    """

    code: str
    inputs: tuple[int, ...] = ()
    shape: Shape | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Program:
    """The program that one case builds, binds and trains; ``heads`` are lines.

    ``requests`` holds the gradient requests that are not "write". ``how`` says how it is trained (`fuzz.training`).
    """

    lines: tuple[Line, ...]
    heads: tuple[int, ...]
    requests: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    how: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_json(text: str) -> Program:
        """A program that `to_json` wrote."""
        value = json.loads(text)
        lines = tuple(
            Line(line["code"], tuple(line["inputs"]), line["shape"] and tuple(line["shape"]), line["dtype"])
            for line in value.pop("lines")
        )
        return Program(lines, tuple(value.pop("heads")), **value)

    def to_json(self) -> str:
        """All of it as text."""
        return json.dumps(asdict(self))

    def meant(self, number: int) -> int:
        """The line that a line is another name of, or itself."""
        while self.lines[number].code == "{0}":
            (number,) = self.lines[number].inputs
        return number

    def needed(self) -> list[int]:
        """The lines that the heads depend on, in order."""
        found: set[int] = set()
        below = list(self.heads)
        while below:
            number = self.meant(below.pop())
            if number not in found:
                found.add(number)
                below.extend(self.lines[number].inputs)
        return sorted(found)

    def source(self) -> str:
        """Python statements that leave the heads in the list ``heads``."""
        written = [
            f"v{number} = " + self.lines[number].code.format(*map(self._name, self.lines[number].inputs))
            for number in self.needed()
        ]
        return "\n".join([*written, f"heads = [{', '.join(map(self._name, self.heads))}]"])

    def _name(self, number: int) -> str:
        return f"v{self.meant(number)}"


def smaller(program: Program) -> Iterator[Program]:
    """Programs with less in them, those with much less first."""
    if len(program.heads) > 1:
        for number in range(len(program.heads)):
            yield replace(program, heads=(program.heads[number],))
        for number in range(len(program.heads)):
            yield replace(program, heads=program.heads[:number] + program.heads[number + 1 :])
    for number in reversed(program.needed()):
        for line in _instead_of(program, number):
            lines = (*program.lines[:number], line, *program.lines[number + 1 :])
            yield replace(program, lines=lines)
    if program.requests:
        yield replace(program, requests={})
    for name in ("options", "requests", "how"):
        given = getattr(program, name)
        for key in given:
            if key == "fuse":  # or what differs afterwards may be the last bits of a fused operator
                continue
            yield replace(program, **{name: {other: value for other, value in given.items() if other != key}})


def _instead_of(program: Program, number: int) -> Iterator[Line]:
    """The possible replacements of a line: one that it reads, or a new argument."""
    line = program.lines[number]
    if line.shape is None or not line.inputs:
        return
    for each in line.inputs:
        other = program.lines[each]
        if (other.shape, other.dtype) == (line.shape, line.dtype) and line.code != "{0}":
            yield replace(line, code="{0}", inputs=(each,))
    if not line.code.startswith("{0}["):
        yield argument(f"free{number}", line.shape, line.dtype)


def argument(name: str, shape: Shape, dtype: str = "float32") -> Line:
    """A variable."""
    return Line(f"var({name!r}, shape={shape}, dtype={dtype!r})", (), shape, dtype)


def shrink(program: Program, fails: Any, deadline: Any) -> Program:
    """The smallest program found for which ``fails(program)`` holds, as it does for the given one."""
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in smaller(program):
            if deadline():
                return program
            if fails(candidate):
                program, shrunk = candidate, True
                break
    return program
