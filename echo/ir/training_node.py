"""A node of a training graph, the types of its tensors, and whether it may be recomputed."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any, Callable, Mapping, Sequence

from echo.errors import GraphError
from echo.ir.graph import VARIABLE, Entry
from echo.ir.op_spec import SIGNS_ATTRIBUTE, is_true
from echo.ir.ops import spec
from echo.system.process import SLOTS

# MXNet's type flags, in order, with their bytes an element
_DTYPES = (
    ("float32", 4), ("float64", 8), ("float16", 2), ("uint8", 1), ("int32", 4), ("int8", 1), ("int64", 8),
    ("bool", 1), ("int16", 2), ("uint16", 2), ("uint32", 4), ("uint64", 8), ("bfloat16", 2),
)  # fmt: skip
FLAGS = {name: flag for flag, (name, _) in enumerate(_DTYPES)}


@dataclass(frozen=True)
class TensorType:
    """Shape and MXNet type flag of one entry."""

    shape: tuple[int, ...]
    flag: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.flag < len(_DTYPES):
            raise GraphError(f"unknown MXNet type flag {self.flag}")

    @cached_property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        return _DTYPES[self.flag][0]

    @property
    def itemsize(self) -> int:
        return _DTYPES[self.flag][1]

    @cached_property
    def bytes(self) -> int:
        return self.elements * self.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@lru_cache(maxsize=4096)
def tensor_type(shape: tuple[int, ...], flag: int) -> TensorType:
    """The type of this shape, one object for all entries: a graph has many entries and few types."""
    return TensorType(shape, flag)


NO_NUMBERS: frozenset[int] = frozenset()  # each empty set that Python makes of something empty takes 216 bytes


@dataclass(frozen=True, **SLOTS)
class TrainingNode:
    """One node of a training graph.

    ``original`` is the number of the user's node that it stands for, None for nodes that MXNet added. ``inplace`` lists
    (input, output, identity) for outputs that may take over an input's memory. ``shape_only`` are inputs read for their
    shape only. ``in_kernel`` are inputs that are read in the kernel which computes them, in graphs of torch: a value
    that is read in no other way, and in the pass in which it is made, takes no memory. The number of each is that of
    the node's kernel: a value that kernels of two numbers read is stored. With 0, each kernel computes the value again.
    ``external`` are outputs whose memory is not the planner's (weight gradients, sparse arrays).
    ``untouched`` are outputs that MXNet plans memory for and then never touches, so that echo's own storage assignment
    plans none: those that the node adds to another array (MXNet's pass DetectInplaceAddTo comes after that of memory),
    and unread gradients of operators that then leave them out (``echo/native/hook/unused_outputs.h``).
    ``layout_copy_bytes`` are bytes that each copy of a forward node would keep in addition to all that is planned
    (`echo.estimators.layouts`).
    """

    op: str
    name: str
    outputs: tuple[TensorType, ...]
    inputs: tuple[Entry, ...] = ()
    control_deps: tuple[int, ...] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)
    forward: bool = True
    original: int | None = None
    inplace: tuple[tuple[int, int, bool], ...] = ()
    shape_only: frozenset[int] = frozenset()
    in_kernel: Mapping[int, int] = field(default_factory=dict)
    external: frozenset[int] = frozenset()
    untouched: frozenset[int] = frozenset()
    random: bool = False
    stateful: bool = False
    mutates: bool = False
    layout_copy_bytes: int = 0

    @property
    def is_variable(self) -> bool:
        return self.op == VARIABLE

    @property
    def is_masked(self) -> bool:
        """Whether its first output can be recomputed from its data and its second output, a mask."""
        return len(self.outputs) > 1 and bool(spec(self.op).safety.clone_op)

    @property
    def unowned(self) -> frozenset[int]:
        """The outputs that need no planned memory: those that are external, or never touched."""
        return self.external | self.untouched if self.untouched else self.external

    def having(self, **changes: Any) -> TrainingNode:
        """Returns a copy with other values, as ``dataclasses.replace`` does, in a fraction of its time."""
        node, values = object.__new__(TrainingNode), list(_READ(self))
        for name, value in changes.items():
            values[_PLACE[name]] = value
        for write, value in zip(_WRITERS, values):
            write(node, value)
        return node


_FIELDS = tuple(item.name for item in fields(TrainingNode))
_PLACE = {name: place for place, name in enumerate(_FIELDS)}
_READ = operator.attrgetter(*_FIELDS)


def _writer(name: str) -> Callable[[TrainingNode, Any], None]:
    """A function that sets a field of a new node; that of a slot takes half the time of ``object.__setattr__``."""
    write: Callable[[TrainingNode, Any], None] | None = getattr(getattr(TrainingNode, name, None), "__set__", None)
    return write or (lambda node, value: object.__setattr__(node, name, value))


_WRITERS = tuple(map(_writer, _FIELDS))


# Whether the nodes of a training graph fit together.
#
# Files and programs may hold anything, and the native planner believes what it is handed.


def check_nodes(nodes: Sequence[TrainingNode]) -> None:
    """Every number in a node names an input, an output or a node that is there.

    Raises:
        GraphError: one does not; the message names the node.
    """
    sizes = [len(node.outputs) for node in nodes]
    for number, node in enumerate(nodes):
        for entry in node.inputs:
            if not (0 <= entry[0] < number and 0 <= entry[1] < sizes[entry[0]]):
                raise GraphError(f"node {number} ({node.name!r}): no output {tuple(entry)} before it")
        for dep in node.control_deps:
            if not 0 <= dep < number:
                raise GraphError(f"node {number} ({node.name!r}): control_deps: no node {dep} before it")
        _check_positions(number, node)


def _check_positions(number: int, node: TrainingNode) -> None:
    inputs, outputs = len(node.inputs), len(node.outputs)
    for read, written, _ in node.inplace:
        if not (0 <= read < inputs and 0 <= written < outputs):
            raise GraphError(
                f"node {number} ({node.name!r}): inplace: there is no pair of input {read} and output {written}, "
                f"expected inputs below {inputs} and outputs below {outputs}"
            )
    for name, positions, count in (
        ("shape_only", node.shape_only, inputs),
        ("in_kernel", frozenset(node.in_kernel), inputs),
        ("external", node.external, outputs),
        ("untouched", node.untouched, outputs),
    ):
        if positions and not (0 <= min(positions) <= max(positions) < count):
            raise GraphError(f"node {number} ({node.name!r}): {name}: expected numbers below {count}, got {positions}")


# Operators that read their inputs through their inputs alone, in the forward pass and in their gradients.
#
# A feature map may be recomputed, move, come out of bits or be given up early only if every operator that reads it is
# one of these by the table (`echo.ir.ops`). Others keep an address or a state between the passes: what they read has to
# stay where it was. The table is no matter of opinion: ``tests/operators`` holds every operator that MXNet registers
# against stock MXNet, with its inputs and outputs recomputed, moved and unpacked by force, and its memory taken over by
# others.
#
# The table stands on one condition: what stock MXNet does not compute in place must not be computed in place now. A
# feature map that is recomputed has one reader less, and MXNet then works in place where it did not before. An array
# that is computed over one in a layout of oneDNN takes on that layout, and max Pooling's gradient, which reads where
# its maxima are by the layout of the forward pass, finds others; the gradients of some operators come out as other
# numbers (`echo.ir.op_spec.GradientFacts.in_place`).


def why_not_reader(op: str, attrs: Mapping[str, str], position: int = 0) -> str:
    """Why the feature map that an operator reads at this input has to stay where it is; empty if it may move."""
    facts = spec(op)
    if not facts.safety.address_stable_reads:
        return f"{op} is not known to read its inputs through its inputs alone"
    if facts.safety.movable_inputs is not None and position not in facts.safety.movable_inputs:
        return f"input {position} of {op} must not move"
    if facts.gradient.in_place(attrs):
        return f"the gradient of {op} with {facts.gradient.in_place.shown(attrs)} depends on whether it works in place"
    if facts.random.draws(attrs):  # and it crashes
        return f"{op} with {facts.random.draws.shown(attrs)} was never tried"
    return ""


# Which nodes of a training graph may be recomputed, and which of their outputs then are.


def all_outputs(node: TrainingNode, hook: bool) -> tuple[int, ...]:
    """The outputs that are recomputed with a node, where that is safe."""
    # MXNet's own mirroring replaces a node as a whole
    return tuple(range(len(node.outputs))) if not hook or spec(node.op).safety.every_output else (0,)


def why_not_recomputable(node: TrainingNode, device: str, hook: bool) -> str:
    """The reason why this node must not be recomputed, empty where it may."""
    facts = spec(node.op)
    if not facts.safety.recomputable:
        return f"{node.op} is not known to be safe to run twice"
    if not hook and facts.safety.needs_hook:
        return f"{node.op} needs the native hook"
    if device != "cpu" and facts.safety.needs_cpu and not is_true(node.attrs, "cudnn_off"):
        return f"{node.op} has side effects on cuDNN"
    if device != "cpu" and facts.safety.rewrites and not hook:
        return f"{node.op} writes into its input on cuDNN, which only the native hook's clone leaves as it is"
    if facts.safety.clone_op:
        return why_not_dropout(node.attrs)
    if node.random or facts.random.draws(node.attrs):
        return f"{node.op} draws random numbers here"
    if facts.safety.training_outputs and SIGNS_ATTRIBUTE not in node.attrs:
        return f"{node.op} keeps signs in the order of its input, and its gradient looks for no other order"
    if node.mutates and not facts.safety.rewrites:
        return f"{node.op} writes into its input"
    return ""


def why_not_dropout(attrs: Mapping[str, str]) -> str:
    """Why the output of a Dropout is no product of its input and a mask of its size; empty where it is."""
    if attrs.get("axes", "()") not in ("()", "[]", "None"):
        return "Dropout over axes has a mask of another shape"
    if float(attrs.get("p", "0.5")) == 0:
        return "Dropout with p=0 makes no mask"
    return ""
