"""``ECHO_TRACE=folder``: the value that each stage of planning gave, as text, in the order in which the stages ran.

``001-fuse.txt``, ``002-differentiate.txt``, ...: one file for each stage of each run of the pipeline, the same in every
run where operators are measured alike. ``chosen`` files say between which graphs a choice was made. ``seconds.tsv`` has
the seconds of each stage. In a folder that has files already, numbers go on from the last one.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, ContextManager, Iterable

from echo.errors import OptionError
from echo.estimators.overhead import Overhead
from echo.ir.op_spec import OF_PLANS
from echo.ir.training_graph import TrainingGraph
from echo.passes.candidates import Candidates
from echo.passes.layouts import Batched
from echo.passes.masks import Masked
from echo.passes.patterns.apply import Fused
from echo.passes.rewrite import Rewritten
from echo.passes.select import Selection
from echo.plans.options import TRACE_VARIABLE
from echo.policies.problem import Segments
from echo.system.threads import PerThread

_FOLDER = PerThread("")


class Trace:
    """Writes into a folder, which is made where it is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stage(self, name: str, value: object, seconds: float) -> None:
        """Writes down the value of a stage, and its seconds.

        Raises:
            OptionError: the folder cannot be written to.
        """
        number = self.note(name, text_of(value))
        with (self._folder / "seconds.tsv").open("a", encoding="utf-8") as file:
            file.write(f"{number:03}\t{name}\t{seconds:.6f}\n")

    def note(self, name: str, text: str) -> int:
        """Writes a text down, and gives its number.

        Raises:
            OptionError: the folder cannot be written to.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            number = 1 + len(list(self._folder.glob("[0-9]*-*.txt")))
            path = self._folder / f"{number:03}-{name.replace(' ', '-')}.txt"
            path.write_text(text.rstrip() + "\n", encoding="utf-8")
        except OSError as error:
            raise OptionError(f"{TRACE_VARIABLE}: expected a folder to write to, got {self._folder}: {error}") from None
        return number


def tracing(folder: str) -> ContextManager[None]:
    """A context in which a thread's plannings are traced into a folder; an empty name leaves it to the environment."""
    return _FOLDER.set_to(folder)


def trace() -> Trace | None:
    """The trace that `tracing` or else the environment asks for, if one does."""
    folder = _FOLDER.value or os.environ.get(TRACE_VARIABLE, "")
    return Trace(Path(folder)) if folder else None


@functools.singledispatch
def text_of(value: Any) -> str:
    """A value of the pipeline as text that tests can compare."""
    return str(value)


@text_of.register(Fused)
def _(fused: Fused) -> str:
    places = (f"fused {pattern} at %{node} {fused.graph.nodes[node].name}" if node < len(fused.graph.nodes) else pattern
              for pattern, node in fused.places)  # fmt: skip
    missed = (f"missed {near_miss.pattern} at {near_miss.name}: {near_miss.reason}" for near_miss in fused.missed)
    return _lines([str(fused.graph), *places, *missed, *map(str, fused.notes)])


@text_of.register(Masked)
@text_of.register(Batched)
def _(value: Masked | Batched) -> str:
    return "nothing is put in" if value.fused is None else text_of(value.fused)


@text_of.register(TrainingGraph)
def _(training: TrainingGraph) -> str:
    lines = [f"training graph of {len(training.nodes)} nodes, run by {training.runner}, {training.planned_bytes} bytes"]
    for number, node in enumerate(training.nodes):
        reads = ", ".join(f"%{entry.node}:{entry.index}" for entry in node.inputs)
        operator = "variable" if node.is_variable else f"{node.op}({reads})"
        part = "forward" if node.forward else "backward"
        lines.append(f"  %{number} {node.name} = {operator} -> {', '.join(map(str, node.outputs))} [{part}]")
    return _lines([*lines, "  return " + ", ".join(f"%{entry.node}:{entry.index}" for entry in training.outputs)])


@text_of.register(Candidates)
def _(candidates: Candidates) -> str:
    groups = [("light", candidates.light), ("heavy", candidates.heavy)]
    lines = [f"{weight} %{number}: {[entry.index for entry in entries]}" for weight, entries_of in groups
             for number, entries in entries_of.items()]  # fmt: skip
    return _lines([*lines, *(f"refused %{number}: {reason}" for number, reason in candidates.refused.items())])


@text_of.register(Segments)
def _(segments: Segments) -> str:
    return _lines(" ".join(f"%{node}" for node in segment.nodes) for segment in segments.segments)


@text_of.register(Overhead)
def _(overhead: Overhead) -> str:
    return f"{overhead.measured} operators measured, {overhead.estimated} estimated"


@text_of.register(Selection)
def _(selection: Selection) -> str:
    again = (f"recompute %{entry.node}:{entry.index}, {selection.runs.get(entry.node, 0)} times"
             for entry in sorted(selection.recompute))  # fmt: skip
    return _lines([f"match range {selection.match_range}: {selection.planned_bytes} bytes", *again])


@text_of.register(Rewritten)
def _(rewritten: Rewritten) -> str:
    marks = ({name: node.attrs[name] for name in OF_PLANS if name in node.attrs} for node in rewritten.graph.nodes)
    named = zip(rewritten.graph.nodes, marks)
    return _lines([f"match range {rewritten.match_range}", *(f"{node.name}: {mark}" for node, mark in named if mark)])


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
