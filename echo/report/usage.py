"""Memory usage of a training step: each tensor with its bytes, and from when to when it is alive."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Callable, Iterable, Iterator, Mapping, Protocol, Sequence, Tuple

from echo.errors import GraphError, OptionError
from echo.estimators.footprint import MIRROR_SUFFIX, OPTIMIZER, OUTPUT_GRADIENTS, RECOMPUTED, lifetimes
from echo.estimators.footprint import layer_of as layer_of_node
from echo.estimators.storage_planner import blocks
from echo.ir.graph import VARIABLE
from echo.ir.schedule import CLONE_SUFFIX
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode
from echo.plans.plan import Plan
from echo.report.segment import Segment

# The memory of one training step of one graph: every array that it holds, when, and for what.

ALWAYS = -1  # the first step of an array that is there before the step begins
STOCK, PLANNED, MIRROR = "stock", "echo", "mirror"  # the graphs that a profile compares
# The memory that grows in a real step (`echo.runtime.profile`).
PROCESS, STORAGE, DEVICE = "memory of the process", "MXNet's storage", "memory of the device"
BLOCKS, GRAPH = "workspaces and oneDNN's blocks", "the bound graph itself"  # parts of `PROCESS`
UNWRITTEN = "allocated, but not written to"  # of `STORAGE` and `BLOCKS`: no part of `PROCESS`
GAPS = "unused at the peak"  # planned memory that no array holds at that moment
Rows = Mapping[Tuple[str, str], int]


@dataclass(frozen=True)
class Tensor:
    """An array of ``bytes`` that lives from step ``first`` to step ``last``, both included.

    Arrays that share memory in place are one, with the name and the operator of the first that a gradient reads, or
    else of the first. ``layer`` is a readable part of the name. ``kind`` is one of `echo.estimators.footprint`: feature
    maps, weights and so on. Arrays that the executor is given have the first step `ALWAYS` and no operator.
    """

    name: str
    op: str
    layer: str
    kind: str
    bytes: int
    first: int
    last: int


Layer = Callable[[Tensor], str]  # how arrays are grouped


def layer_of(tensor: Tensor) -> str:
    """The way in which arrays are grouped by default."""
    return tensor.layer


@dataclass(frozen=True)
class Usage:
    """The memory of a graph in one training step.

    ``planned`` is the total of MXNet's own memory planner in bytes, ``beside`` the bytes that the plan knows of
    alongside it and alongside the arrays that the executor is given, by kind. ``steps`` are the names of the operators
    in the order in which they run, the first ``forward_steps`` of which are the forward pass. ``measured`` are the
    bytes by which each watched memory grew in a real step (`echo.runtime.profile`).
    """

    planned: int
    beside: Mapping[str, int]
    steps: tuple[str, ...]
    forward_steps: int
    tensors: tuple[Tensor, ...]
    measured: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        end = len(self.steps)
        for tensor in self.tensors:
            if not (ALWAYS <= tensor.first <= tensor.last < max(end, 1)) or tensor.bytes < 0:
                raise GraphError(f"{tensor.name}: expected bytes and steps of {end}, got {tensor}")

    @cached_property
    def live(self) -> tuple[int, ...]:
        """The bytes of MXNet's planned arrays that are alive at each step."""
        changes = [0] * (len(self.steps) + 1)
        for tensor in self.passing:
            changes[tensor.first] += tensor.bytes
            changes[tensor.last + 1] -= tensor.bytes
        return tuple(accumulate(changes[:-1]))

    @cached_property
    def passing(self) -> tuple[Tensor, ...]:
        """The arrays that MXNet plans: those that are not there all the time."""
        return tuple(tensor for tensor in self.tensors if tensor.first != ALWAYS)

    @cached_property
    def peak_step(self) -> int:
        """The first step at which the most bytes are alive."""
        return max(range(len(self.live)), key=self.live.__getitem__) if self.live else 0

    @property
    def live_peak(self) -> int:
        return self.live[self.peak_step] if self.live else 0

    @cached_property
    def at_peak(self) -> tuple[Tensor, ...]:
        """The arrays alive at the peak, the largest first, and those that are there all the time."""
        alive = (tensor for tensor in self.tensors if tensor.first <= self.peak_step <= tensor.last)
        return tuple(sorted(alive, key=lambda tensor: (-tensor.bytes, tensor.first)))

    @property
    def total(self) -> int:
        """The bytes that the executor holds: planned by MXNet, given by the user, and allocated by operators."""
        user_arrays = sum(tensor.bytes for tensor in self.tensors if tensor.first == ALWAYS)
        return self.planned + user_arrays + sum(self.beside.values())

    @property
    def unaccounted(self) -> int | None:
        """Bytes by which the device, or on a CPU the process, grew beyond what is known; None if it was not measured.

        On a CPU, the measured parts of the growth are known: `STORAGE`, `BLOCKS` and `GRAPH`, less `UNWRITTEN`. On a
        GPU, or if blocks were not counted, `total` is, without the states of an optimizer: the measured step has none.
        """
        held = self.total - self.by_kind.get(OPTIMIZER, 0)
        if DEVICE in self.measured:
            return self.measured[DEVICE] - held
        if PROCESS not in self.measured:
            return None
        if BLOCKS not in self.measured:
            return self.measured[PROCESS] - held
        known = sum(self.measured.get(part, 0) for part in (STORAGE, BLOCKS, GRAPH)) - self.measured.get(UNWRITTEN, 0)
        return self.measured[PROCESS] - known

    @property
    def by_kind(self) -> Mapping[str, int]:
        """`total`, split by kind at the peak; `GAPS` are planned bytes in which no array lives then."""
        kinds: Counter[str] = Counter()
        for tensor in self.at_peak:
            kinds[tensor.kind] += tensor.bytes
        kinds.update({GAPS: self.planned - self.live_peak})
        kinds.update(self.beside)
        return {kind: size for kind, size in kinds.most_common() if size}

    def by_layer(self, layer: Layer = layer_of) -> Rows:
        """Bytes at the peak by (layer, kind), the largest first; ``layer`` may group arrays in another way."""
        rows: Counter[tuple[str, str]] = Counter()
        for tensor in self.at_peak:
            rows[layer(tensor), tensor.kind] += tensor.bytes
        return dict(rows.most_common())

    def layers(self, layer: Layer = layer_of) -> Mapping[str, int]:
        """Bytes at the peak by layer, all kinds together."""
        sizes: Counter[str] = Counter()
        for (name, _), size in self.by_layer(layer).items():
            sizes[name] += size
        return sizes

    @property
    def moment(self) -> str:
        """Describes the step at which the peak is; empty where there are no operators."""
        if not self.steps:
            return ""
        half = "forward" if self.peak_step < self.forward_steps else "backward"
        return f"step {self.peak_step} of {len(self.steps)} ({half}, {self.steps[self.peak_step]})"


def layer_by(pattern: str) -> Layer:
    """Returns a function that groups arrays by the text that a regular expression finds in their names.

    That is its first group, or all of it where it has none; "others" where it is not found.

    Raises:
        OptionError: it is no regular expression.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"expected a regular expression for the names of arrays, got {pattern!r}: {error}") from None

    def group(tensor: Tensor) -> str:
        name_match = compiled.search(tensor.name)
        return (name_match[1 if compiled.groups else 0] or "others") if name_match else "others"

    return group


def to_columns(tensors: Sequence[Tensor]) -> dict[str, list[object]]:
    """Arrays as columns, for JSON; texts that repeat stand once in ``texts``, and columns hold their numbers."""
    texts: dict[str, int] = {}

    def numbered(values: Iterable[str]) -> list[object]:
        return [texts.setdefault(value, len(texts)) for value in values]

    columns: dict[str, list[object]] = {"name": [tensor.name for tensor in tensors]}
    for name in ("op", "layer", "kind"):
        columns[name] = numbered(getattr(tensor, name) for tensor in tensors)
    for name in ("bytes", "first", "last"):
        columns[name] = [getattr(tensor, name) for tensor in tensors]
    return {"texts": list(texts), **columns}


def from_columns(columns: Mapping[str, Sequence[object]]) -> tuple[Tensor, ...]:
    """Reads what `to_columns` wrote.

    Raises:
        KeyError, IndexError, TypeError, ValueError: these are no such columns.
    """
    texts = columns["texts"]
    rows = [
        columns["name"],
        *([texts[_number(at, 0)] for at in columns[name]] for name in ("op", "layer", "kind")),
        *(columns[name] for name in ("bytes", "first", "last")),
    ]
    if len(set(map(len, rows))) != 1:
        raise ValueError("columns of different lengths")
    return tuple(
        Tensor(_text(name), _text(op), _text(layer), _text(kind), _number(size), _number(first), _number(last))
        for name, op, layer, kind, size, first, last in zip(*rows)
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


def _number(value: object, least: int = ALWAYS) -> int:
    if type(value) is not int or value < least:
        raise TypeError(f"expected a number from {least} on, got {value!r}")
    return value


# Usages of training graphs: lifetimes of their arrays, with the arrays that the executor is given.


def usage(
    training: TrainingGraph, planned: int, given: Iterable[tuple[str, str, int]], beside: Mapping[str, int]
) -> Usage:
    """The usage of a training graph as MXNet binds it, clones included.

    Args:
        training: the graph that runs.
        planned: bytes of MXNet's memory planner for it.
        given: arrays that the executor is given: name, kind, bytes.
        beside: bytes alongside both, by kind.
    """
    operators = [number for number, node in enumerate(training.nodes) if node.op != VARIABLE]
    step_of = {number: step for step, number in enumerate(operators)}
    end = max(len(operators) - 1, 0)
    arrays = (
        Tensor(name, "", layer_of_node(TrainingNode(VARIABLE, name, ())), kind, size, ALWAYS, end)
        for name, kind, size in given
        if size
    )
    nodes = training.nodes
    return Usage(
        planned=planned,
        beside={kind: size for kind, size in beside.items() if size},
        steps=tuple(nodes[number].name for number in operators),
        forward_steps=sum(nodes[number].forward for number in operators),
        tensors=(*arrays, *_passing(training, step_of)),
    )


def _passing(training: TrainingGraph, step_of: Mapping[int, int]) -> Iterator[Tensor]:
    """The arrays between nodes, whose memory MXNet plans."""
    clones = {node.name + suffix for node in training.nodes if node.forward for suffix in (CLONE_SUFFIX, MIRROR_SUFFIX)}
    for life in lifetimes(training, blocks(training)):
        node = training.nodes[life.node]
        is_clone = life.kind == OUTPUT_GRADIENTS and node.name in clones
        kind = RECOMPUTED if is_clone else life.kind
        yield Tensor(node.name, node.op, life.layer, kind, life.bytes, step_of[life.first], step_of[life.last])


class Compared(Protocol):
    """Graphs whose memory is compared."""

    @property
    def usages(self) -> Mapping[str, Usage]:
        """The graphs, by name."""


class Profiled(Compared, Protocol):
    """The values of an `echo.report.profile.Profile` that texts, charts and pages show."""

    @property
    def plan(self) -> Plan:
        """The plan of echo's graph."""

    @property
    def device(self) -> str:
        """Either "cpu" or "gpu"."""

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions that it was made with."""

    @property
    def frontier(self) -> Sequence[Mapping[str, float]]:
        """Plans for other budgets."""

    @property
    def segment(self) -> Segment | None:
        """One segment of echo's graph."""
