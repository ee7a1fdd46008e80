"""What a plan says of each feature map, how that is saved as JSON, and how the graph is marked with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import Any, Iterable, Mapping, Sequence, Tuple, Type

from echo.errors import GraphError
from echo.ir.graph import Entry, Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, OF_PLANS, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import StorageStrategy, TrainingGraph
from echo.system.files import shortened

# The parts of a plan: decisions about feature maps, marks of nodes, notes, near-misses of patterns, and bytes.

HIDDEN = "inside of operators"  # a kind of memory that no planner sees
LAYOUT_COPIES = "plain copies of maps"  # of recomputed operators, alongside their arrays (`echo.estimators.layouts`)
WORKSPACES = "workspaces of fused operators"  # what they draw while they run (`echo.estimators.footprint`)
STASH, RECOMPUTE = "stash", "recompute"
_MOST_REASONS = 3


@dataclass(frozen=True)
class Decision:
    """One feature map is kept or recomputed: output ``output`` of the node numbered ``node`` in the symbol's graph.

    ``bytes`` is its size; ``seconds`` is the time of computing it once more.
    """

    node: int
    name: str
    op: str
    output: int
    action: str
    bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class Mark:
    """The attributes ``attrs`` that apply the plan at the user's node ``node``, an operator ``op``."""

    node: int
    op: str
    attrs: Mapping[str, str]


class NoteKind(Enum):
    """The kinds of notes: on the plan, on a way to plan that failed and was left out, on planning that ended early."""

    REMARK = "remark"
    FAILED = "failed"
    LATE = "late"


@dataclass(frozen=True)
class Note:
    """A text about the plan for the user."""

    text: str
    kind: NoteKind = NoteKind.REMARK

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class MissedFusion:
    """A pattern that was nearly found at a node of the user, and why no fused operator takes its place.

    A ``quiet`` one says nothing new (most networks have some), or nothing that matters: the arrays are too small. It is
    named only to a user who asks about its node.
    """

    node: int
    name: str
    pattern: str
    reason: str
    quiet: bool = False

    def __str__(self) -> str:
        return f"{self.name} is not fused as {self.pattern}: {self.reason}"


def near_misses(missed: Iterable[MissedFusion]) -> list[list[MissedFusion]]:
    """The near-misses that the user is told of, those with one reason together: of the three most frequent reasons."""
    groups: dict[str, list[MissedFusion]] = defaultdict(list)
    for missed_fusion in missed:
        if not missed_fusion.quiet:
            groups[missed_fusion.reason].append(missed_fusion)
    return sorted(groups.values(), key=len, reverse=True)[:_MOST_REASONS]


@dataclass(frozen=True)
class Memory:
    """Bytes before or after: ``planned`` by MXNet's memory planner, ``live_peak`` of entries alive at once.

    ``static`` is there all the time (arguments, their gradients, auxiliary states), by kind; ``at_peak`` splits the
    live peak by kind; ``layers`` are the feature maps stashed for the backward pass.
    """

    planned: int
    live_peak: int
    static: Mapping[str, int]
    at_peak: Mapping[str, int]
    layers: Mapping[str, int]

    @property
    def layout_copies(self) -> int:
        """The bytes that recomputed operators keep alongside planned memory (`LAYOUT_COPIES`)."""
        return self.static.get(LAYOUT_COPIES, 0)

    @property
    def chosen(self) -> int:
        """The bytes that depend on the plan: planned memory, and what operators keep alongside it."""
        return self.planned + self.layout_copies

    @property
    def workspaces(self) -> int:
        """The bytes that fused operators draw while they run (`WORKSPACES`)."""
        return self.static.get(WORKSPACES, 0)

    @property
    def total(self) -> int:
        """The bytes that the executor holds: planned and static memory."""
        return self.planned + sum(self.static.values())


# Reads the values of a plan from JSON, and checks the type of each before anything uses it.

_Types = Tuple[Type[Any], ...]
NUMBER: _Types = (int,)
REAL: _Types = (int, float)
TEXT: _Types = (str,)
MOST = 2**62  # bytes or seconds; larger numbers, infinities and NaN are refused
_TYPE_NAMES = {NUMBER: "a number", REAL: "a number", TEXT: "a text"}
_DECISION_TYPES = {
    "node": NUMBER, "name": TEXT, "op": TEXT, "output": NUMBER, "action": TEXT, "bytes": NUMBER,
    "seconds": REAL, "reason": TEXT,
}  # fmt: skip


def _short(value: object) -> str:
    return shortened(repr(value) if not isinstance(value, int) or abs(value) < MOST else "a number too large")


def check(name: str, value: Any, types: Mapping[str, _Types]) -> None:
    """Raises `GraphError` unless each attribute of a value is of its type; ``name`` is what messages call the value."""
    for key, expected in types.items():
        item = getattr(value, key)
        if not isinstance(item, expected) or isinstance(item, bool) or (expected != TEXT and not abs(item) < MOST):
            raise GraphError(f"{name}: {key} must be {_TYPE_NAMES[expected]}, got {_short(item)}")


def as_list(name: str, value: Any) -> Sequence[Any]:
    """Returns the value of a field that is a list.

    Raises:
        GraphError: it is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise GraphError(f"{name} must be a list, got {_short(value)}")
    return value


def read_decision(value: Mapping[str, Any]) -> Decision:
    decision = Decision(**value)
    check(str(decision.name), decision, _DECISION_TYPES)
    if decision.action not in (STASH, RECOMPUTE):
        raise GraphError(f"{decision.name}: expected action stash or recompute, got {decision.action!r}")
    return decision


_TEXTS = frozenset((str,))


def _items(name: str, value: Any, count: int) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise GraphError(f"{name}: expected lists of {count} values, got {_short(value)}")
    return value


def read_mark(value: Any) -> Mark:
    node, op, attrs = _items("marks", value, 3)
    if type(node) is not int or not isinstance(op, str):
        raise GraphError(f"marks: expected the number and the operator of a node, got {node!r} and {op!r}")
    if not isinstance(attrs, dict) or not _TEXTS.issuperset(map(type, (*attrs, *attrs.values()))):
        raise GraphError(f"marks: expected attributes of node {node}, got {attrs!r}")
    return Mark(node, op, attrs)


def read_match_site(value: Any) -> tuple[str, int]:
    pattern, node = _items("fused", value, 2)
    if not isinstance(pattern, str) or type(node) is not int:
        raise GraphError(f"fused: expected the name of a pattern and the number of a node, got {value!r}")
    return pattern, node


def read_missed(value: Mapping[str, Any]) -> MissedFusion:
    missed = MissedFusion(**value)
    check("missed", missed, {"node": NUMBER, "name": TEXT, "pattern": TEXT, "reason": TEXT})
    if not isinstance(missed.quiet, bool):
        raise GraphError(f"missed: quiet must be true or false, got {_short(missed.quiet)}")
    return missed


def read_note(value: Any) -> Note:
    kind, text = _items("notes", value, 2)
    if not isinstance(text, str):
        raise GraphError(f"notes: expected a text, got {_short(text)}")
    kinds = {known.value: known for known in NoteKind}
    if not isinstance(kind, str) or kind not in kinds:
        raise GraphError(f"notes: expected one of {', '.join(kinds)}, got {_short(kind)}")
    return Note(text, kinds[kind])


def read_memory(name: str, value: Mapping[str, Any]) -> Memory:
    memory = Memory(**value)
    check(name, memory, {"planned": NUMBER, "live_peak": NUMBER})
    for key in ("static", "at_peak", "layers"):
        sizes = getattr(memory, key)
        if not isinstance(sizes, dict) or not all(type(size) is int and abs(size) < MOST for size in sizes.values()):
            raise GraphError(f"{name}: {key} must map names to bytes, got {_short(sizes)}")
    return memory


# Marks: how a plan is written into attributes of the user's nodes, and read from them.


def mark(
    graph: Graph,
    outputs: Mapping[int, list[int]],
    hook: bool,
    match_range: int | None = None,
    splits: Mapping[int, Sequence[int]] | None = None,
    static: bool = False,
) -> Graph:
    """The graph in which these outputs of these nodes are marked as recomputed.

    ``splits`` are backward nodes, counted from 0, at which another copy of a node begins; by default all of them read
    the same copy. A match range is written alongside each mark, or into every node where nothing is recomputed;
    ``static`` says that a CachedOp with static_alloc runs the graph.
    """
    if not hook:
        return graph.with_attrs({number: {MIRROR_ATTRIBUTE: "True"} for number in outputs})
    texts = {number: _text(out, (splits or {}).get(number, ())) for number, out in outputs.items()}
    marked = graph.with_attrs({number: {PLAN_ATTRIBUTE: text} for number, text in texts.items()})
    if match_range is None:
        return marked
    operators = [number for number, node in enumerate(graph.nodes) if not node.is_variable and node.takes_attrs]
    text = range_text(match_range, static)
    return marked.with_attrs({number: {RANGE_ATTRIBUTE: text} for number in outputs or operators})


def range_text(match_range: int, static: bool) -> str:
    """A match range as the hook reads it; ``static`` as for `mark`."""
    return f"{match_range}s" if static and match_range == StorageStrategy.ASSIGNED else str(match_range)


def _text(outputs: Sequence[int], splits: Sequence[int]) -> str:
    suffix = "" if list(splits) in ([], [0]) else "@" + ",".join(map(str, splits))
    return ",".join(map(str, sorted(outputs))) + suffix


def marked(original: Graph, rewritten: Graph) -> dict[int, str]:
    """The nodes that a plan recomputes, with the attribute that says so; not those that the user marked himself."""
    return {
        number: name
        for number, (before, after) in enumerate(zip(original.nodes, rewritten.nodes))
        for name in (PLAN_ATTRIBUTE, MIRROR_ATTRIBUTE)
        if name in after.attrs and name not in before.attrs
    }


def has_gradient_rules(graph: Graph) -> bool:
    """Whether a rewritten graph computes gradients by rules of echo's."""
    return any(GRADIENT_ATTRIBUTE in node.attrs for node in graph.nodes)


def unmarked(original: Graph, rewritten: Graph) -> Graph:
    """A rewritten graph that came back from MXNet, without the marks of the plan."""
    original_attributes = set().union(*(node.attrs for node in original.nodes))
    return rewritten.without_attrs(*set(OF_PLANS) - original_attributes)


def marks_of(original: Graph, rewritten: Graph) -> tuple[Mark, ...]:
    """The attributes of plans that a rewritten graph adds to the user's; `echo.passes.check_marks` applies them."""
    added = (
        {name: after.attrs[name] for name in OF_PLANS if name in after.attrs and name not in before.attrs}
        for before, after in zip(original.nodes, rewritten.nodes)
    )
    return tuple(Mark(number, original.nodes[number].op, attrs) for number, attrs in enumerate(added) if attrs)


def outputs_of(mark: Mark) -> tuple[int, ...]:
    """The outputs that a mark recomputes; under MXNet's own mirroring the first, which stands for all."""
    if MIRROR_ATTRIBUTE in mark.attrs:
        return (0,)
    outputs, _, _ = mark.attrs.get(PLAN_ATTRIBUTE, "").partition("@")
    return tuple(int(output) for output in outputs.split(",") if output)


def splits_of(mark: Mark) -> tuple[int, ...]:
    """The backward nodes, counted from 0, at which another copy begins; none where all read the same copy."""
    _, _, splits = mark.attrs.get(PLAN_ATTRIBUTE, "").partition("@")
    return tuple(int(split) for split in splits.split(",") if split)


def recomputed_in(training: TrainingGraph, marks: Iterable[Mark]) -> tuple[list[Entry], RecomputeSchedule]:
    """The entries that marks recompute, and the schedule of nodes of which one copy does not serve all readers.

    Nodes that MXNet merged into equal ones are not there.
    """
    again = [(training.number_of[mark.node], mark) for mark in marks if mark.node in training.number_of]
    entries = [Entry(number, output) for number, mark in again for output in outputs_of(mark)]
    splits = ((number, splits_of(mark)) for number, mark in again)
    return entries, {
        number: tuple(training.backward[at] for at in positions) for number, positions in splits if positions
    }
