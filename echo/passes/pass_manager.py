"""Runs passes: what each needs and gives, what is dumped of it, and the rules that its value has to keep."""

from __future__ import annotations

import functools
import itertools
import math
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterable, Mapping, NoReturn, Protocol, Sequence

from echo.errors import BudgetError, EchoError, OptionError, one_line, reraise_interruption
from echo.estimators.cost_model import CostModel
from echo.ir import graph as graphs
from echo.ir.graph import Entry, Graph, Node
from echo.ir.op_spec import OF_PLANS
from echo.ir.schedule import with_clones
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import check_nodes
from echo.passes.analysis import Candidates
from echo.passes.patterns.apply import Fused
from echo.passes.refinements import Batched, Masked
from echo.passes.request import Request
from echo.passes.rewrite import Confirmed, Rewritten
from echo.passes.select import Selection
from echo.plans.plan import Plan
from echo.plans.variables import DEBUG_VARIABLE, debug
from echo.policies.problem import Segments
from echo.system.threads import PerThread

# ``ECHO_DEBUG=dump=FOLDER``: the value that each stage of planning gave, as text, in the order in which the stages ran.
#
# ``001-fuse.txt``, ``002-differentiate.txt``, ...: one file for each stage of each run of the pipeline, the same in
# every run where operators are measured alike. ``chosen`` files say between which graphs a choice was made.
# ``seconds.tsv`` has the seconds of each stage. In a folder that has files already, numbers go on from the last one.

_FOLDER = PerThread("")


class StageDump:
    """Writes the result of each stage into a folder, which is made if it is missing."""

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
            raise OptionError(
                f"{DEBUG_VARIABLE}: dump: expected a folder to write to, got {self._folder}: {error}"
            ) from None
        return number


def dumping(folder: str) -> ContextManager[None]:
    """A context in which a thread's stages are dumped into a folder; an empty name leaves it to the environment."""
    return _FOLDER.set_to(folder)


def stage_dump() -> StageDump | None:
    """The dump that `dumping` or else the environment asks for, if one does."""
    folder = _FOLDER.value or debug().dump
    return StageDump(Path(folder)) if folder else None


@functools.singledispatch
def text_of(value: Any) -> str:
    """A value of the pipeline as text that tests can compare."""
    return str(value)


@text_of.register(Fused)
def _(fused: Fused) -> str:
    places = (f"fused {pattern} at %{node} {fused.graph.nodes[node].name}" if node < len(fused.graph.nodes) else pattern
              for pattern, node in fused.match_sites)  # fmt: skip
    missed = (f"missed {each.pattern} at {each.name}: {each.reason}" for each in fused.missed)
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


@text_of.register(CostModel)
def _(costs: CostModel) -> str:
    return f"{costs.measured} operators measured, {costs.estimated} estimated"


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


# A pass takes values and returns a value; the runner checks its contract.
#
# Each pass is a frozen dataclass whose fields are its options. It declares the types that it ``needs`` and the type
# that it ``gives``; the runner hands it the values and fails with the pass's name where one is missing or of another
# type.


class Pass(Protocol):
    """A stage of the pipeline: computes one value from others."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> tuple[type, ...]: ...
    @property
    def gives(self) -> type: ...
    def run(self, *values: Any) -> Any: ...


def run(
    passes: Sequence[Pass],
    initial_values: Iterable[object],
    progress: Callable[[str], None],
    spent: dict[str, float] | None = None,
) -> dict[type, Any]:
    """Runs the passes in order and returns every value by its type; a pass whose value is there at first does not run.

    ``spent`` gets the seconds of each pass that ran, by its name.

    Raises:
        EchoError: a pass failed; the error names it and the passes before it. Errors that are about the user's
            options (`OptionError`, `BudgetError`) are raised as they are.
    """
    values: dict[type, Any] = {type(value): value for value in initial_values}
    done = {} if spent is None else spent
    dump = stage_dump()
    for stage in passes:
        if stage.gives in values:
            continue
        missing = [value_type.__name__ for value_type in stage.needs if value_type not in values]
        if missing:
            raise EchoError(f"pass {stage.name} needs {', '.join(missing)}, which none of {list(done)} gave")
        progress(stage.name)
        started = time.perf_counter()
        try:
            value = _checked(stage, stage.run(*(values[value_type] for value_type in stage.needs)), values)
        except Exception as error:
            reraise_interruption(error)
            if dump is not None:
                dump.note(stage.name, f"failed: {one_line(error)}")
            if isinstance(error, (OptionError, BudgetError)):
                raise
            _raise(error, (*done, stage.name))
        done[stage.name] = time.perf_counter() - started
        if dump is not None:
            dump.stage(stage.name, value, done[stage.name])
        values[stage.gives] = value
    return values


def _checked(stage: Pass, value: object, values: Mapping[type, Any]) -> object:
    if not isinstance(value, stage.gives):
        raise EchoError(f"expected a value of type {stage.gives.__name__}, got {type(value).__name__}")
    if debug().check:
        check(value, values)
    return value


def _raise(error: Exception, stages: tuple[str, ...]) -> NoReturn:
    """Raises an error with the stages up to the one that failed; an error that is not echo's becomes an `EchoError`."""
    if isinstance(error, EchoError):
        error.stages = stages
        raise error
    unknown = EchoError(f"{type(error).__name__}: {error}")
    unknown.stages = stages
    raise unknown from error


# ``ECHO_DEBUG=check``: the rules that the values of the pipeline keep, checked after each stage; always in the tests.
#
# A stage that breaks a rule fails, as with any other error: its plan is left out, and the user's training goes on.
# Graphs and training graphs also check themselves where they are made; code that skips these checks is caught here.


@functools.singledispatch
def check(value: Any, before: Mapping[type, Any]) -> None:
    """Checks the value of a stage by its rules, and against the values of the stages ``before``, by their types.

    Raises:
        EchoError: a rule is broken; the message says which, and where.
    """


@check.register(Fused)
def _(fused: Fused, before: Mapping[type, Any]) -> None:
    original: Graph = before[Request].graph
    graphs.check(fused.graph)
    _expect(
        len(fused.graph.heads) == len(original.heads), f"{len(original.heads)} outputs, got {len(fused.graph.heads)}"
    )
    expected, got = original.variable_names, fused.graph.variable_names
    _expect(got == expected, f"the variables {expected}, got {got}")


@check.register(Masked)
@check.register(Batched)
def _(value: Masked | Batched, before: Mapping[type, Any]) -> None:
    if value.fused is not None:
        check(value.fused, before)


@check.register(TrainingGraph)
def _(training: TrainingGraph, before: Mapping[type, Any]) -> None:
    check_nodes(training.nodes)
    nodes = before[Request].graph.nodes
    for number, node in training.operators():
        is_operator = node.original is None or (
            0 <= node.original < len(nodes) and not nodes[node.original].is_variable
        )
        _expect(
            is_operator, f"node {number} ({node.name!r}) to stand for an operator of the user's, got {node.original}"
        )


@check.register(Candidates)
def _(candidates: Candidates, before: Mapping[type, Any]) -> None:
    training: TrainingGraph = before[TrainingGraph]
    forward = {number for number, node in training.operators() if node.forward}
    insisted = {entry.node for entry in candidates.must_recompute}
    verdicts = [set(candidates.light), set(candidates.heavy), set(candidates.refused), insisted]
    _expect(set().union(*verdicts) == forward, "a verdict on each forward operator, and on nothing else")
    _expect(sum(map(len, verdicts)) == len(forward), "one verdict on each forward operator")
    for number, entries in (*candidates.light.items(), *candidates.heavy.items()):
        _expect(all(entry.node == number for entry in entries), f"outputs of node {number}, got {entries}")
    for entry in _offered(candidates):
        there = 0 <= entry.index < len(training.nodes[entry.node].outputs)
        _expect(there, f"an output of node {entry.node}, got {tuple(entry)}")


@check.register(Segments)
def _(segments: Segments, before: Mapping[type, Any]) -> None:
    numbers = [number for segment in segments.segments for number in segment.nodes]
    _expect(sorted(numbers) == sorted(before[Candidates].light), "each light candidate in one segment")


@check.register(CostModel)
def _(costs: CostModel, before: Mapping[type, Any]) -> None:
    count = len(before[TrainingGraph].nodes)
    _expect(len(costs.seconds) == count, f"seconds of {count} nodes, got {len(costs.seconds)}")
    for number, seconds in enumerate(costs.seconds):
        _expect(math.isfinite(seconds) and seconds >= 0, f"seconds of node {number}, got {seconds}")


@check.register(Selection)
def _(selection: Selection, before: Mapping[type, Any]) -> None:
    training, candidates = before[TrainingGraph], before[Candidates]
    offered = _offered(candidates)
    _expect(selection.recompute <= offered, "recomputed feature maps to be among the candidates")
    _expect(candidates.must_recompute <= selection.recompute, "what the user insists on to be recomputed")
    _expect(set(selection.runs) <= {entry.node for entry in offered}, "only candidates to be recomputed")
    _expect(all(times > 0 for times in selection.runs.values()), "recomputed nodes to run once or more")
    with_clones(training, selection.recompute, selection.schedule)  # every reader finds what it reads, before it


@check.register(Rewritten)
def _(rewritten: Rewritten, before: Mapping[type, Any]) -> None:
    original: Graph = before[Request].graph
    graphs.check(rewritten.graph)
    _expect(rewritten.graph.heads == original.heads, "the user's outputs")
    _expect(
        len(rewritten.graph.nodes) == len(original.nodes),
        f"{len(original.nodes)} nodes, got {len(rewritten.graph.nodes)}",
    )
    for number, (node, base) in enumerate(zip(rewritten.graph.nodes, original.nodes)):
        _expect(_is_marked(node, base), f"node {number} ({base.name!r}) as the user made it, but for added attributes")


@check.register(Confirmed)
def _(confirmed: Confirmed, before: Mapping[type, Any]) -> None:
    stock, needed = before[TrainingGraph].planned_bytes, confirmed.planned_bytes + confirmed.layout_copy_bytes
    insists = before[Request].options.recompute
    _expect(insists or needed <= stock, f"no more than the {stock:,} bytes of the graph without a plan, got {needed:,}")


@check.register(Plan)
def _(plan: Plan, _: Mapping[type, Any]) -> None:
    places = [(decision.name, decision.node, decision.output) for decision in plan.decisions]
    _expect(len(places) == len(set(places)), "one decision on each feature map")
    changed = plan.marks or plan.recomputed
    _expect(not (plan.changes_nothing and changed), "nothing recomputed in the original graph")


def _expect(holds: object, rule: str) -> None:
    if not holds:
        raise EchoError(f"expected {rule}")


def _offered(candidates: Candidates) -> frozenset[Entry]:
    entries = itertools.chain(*candidates.light.values(), *candidates.heavy.values())
    return candidates.must_recompute.union(entries)


def _is_marked(node: Node, base: Node) -> bool:
    same = (node.op, node.name, node.inputs, node.control_deps) == (base.op, base.name, base.inputs, base.control_deps)
    return same and base.attrs.items() <= node.attrs.items()
