"""A small symbol in which one node of a training graph can be timed, at a part of its size where it is large."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np

from echo.estimators.cost_model import UnmeasurableError
from echo.estimators.cost_table import BYTES_PER_SECOND, FLOPS_PER_SECOND
from echo.estimators.operator_groups import (
    attributes,
    blocked_nodes,
    forward_node,
    is_blocked,
    product_of,
    unrolled_nodes,
    work,
)
from echo.frontend.symbols import load
from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.meter.capi import Microbenchmark, Variable

_FLOATS = frozenset({"float32", "float64", "float16"})

# Up to these a node is timed at full size; beyond, with a part of its leading dimension, and scaled. The time of
# convolutions and BatchNorm is proportional to the batch within 10 % from a batch of 2 on, for all shapes of ResNet-50.
_MOST_BYTES = 16 << 20
_MOST_FLOPS = 5e8
_SMALLEST_PART = 2
_ANY_PART = 8.0  # times smaller, to see what is cut
# Reading the parameters may take this part of a time that is scaled; at full size it takes less.
_READING_PART = 0.15
# Gradients of convolutions also write theirs, and change layouts: 2 images of 16 took 1.4 times their part of the time.
_TOUCHED_BY_GRADIENTS = 3
# What an operator allocates for itself while it runs comes again from the system, a page fault a page, where it is this
# large: glibc keeps what is smaller (``mallopt(3)``, M_MMAP_THRESHOLD). The gradient of a softmax, for which MXNet
# allocates an array where it is written over another one, took 3.0 ns an element of 192 x 512 x 512, and 0.5 of a part.
_ALWAYS_FRESH = 32 << 20
# A node that reads and writes more, after cutting, is not measured.
_LARGEST_BYTES = 256 << 20


@dataclass(frozen=True)
class GraphFacts:
    """Of a training graph: the entries with readers, the nodes in oneDNN's layouts, products of unrolled layers."""

    read: frozenset[tuple[int, ...]]
    blocked: frozenset[int]
    unrolled: frozenset[int]

    @staticmethod
    def of(training: TrainingGraph) -> GraphFacts:
        """Reads the facts of a graph."""
        inputs = [entry[:2] for node in training.nodes for entry in node.inputs]
        read = frozenset([*inputs, *(entry[:2] for entry in training.outputs)])
        return GraphFacts(read, blocked_nodes(training), unrolled_nodes(training))


def microbenchmark_of(
    training: TrainingGraph, number: int, excess: float, facts: GraphFacts
) -> tuple[Microbenchmark, float]:
    """The microbenchmark of a node that is ``excess`` times too large, and the factor from its seconds to the node's.

    Raises:
        UnmeasurableError: the node is too large and cannot be cut.
        mx.MXNetError: MXNet does not accept the node's shapes.
    """
    node = training.nodes[number]
    forward = forward_node(training, node)
    sizes = _Sizes.of(training, number if forward is None else node.control_deps[0], excess, facts.blocked)
    inputs = tuple(_operand(training, number, entry, sizes) for entry in node.inputs)
    moved = sum(TensorType(item.shape, item.flag).bytes for item in inputs if isinstance(item, Variable))
    moved += int(sum(tensor.bytes for tensor in node.outputs) / sizes.scale)
    if moved > _LARGEST_BYTES:
        raise UnmeasurableError(f"{node.op} moves {moved:,} bytes, expected at most {_LARGEST_BYTES:,}")
    heavy = spec((forward or node).op).cost.flops is not None
    microbenchmark = Microbenchmark(
        op=node.op,
        attrs=_attributes(training, node),
        inputs=inputs,
        outputs=tuple(i for i in range(len(node.outputs)) if (number, i) in facts.read) or (0,),
        forward=forward.op if forward else "",
        forward_inputs=_forward_inputs(training, forward, sizes),
        hot=number in facts.unrolled if heavy else node.forward,
        heavy=heavy,
        bytes=max(1, moved),
        **_memory(node, inputs, heavy, sizes.scale),
    )
    return microbenchmark, sizes.scale


def _memory(node: TrainingNode, inputs: Sequence[Variable | int], heavy: bool, scale: float) -> dict[str, int]:
    """Where a large gradient is written, and from where on its allocations are fresh; others do not depend on it."""
    if node.forward or heavy or node.outputs[0].bytes < _ALWAYS_FRESH:
        return {}
    over = [source for source, output, _ in node.inplace if output == 0 and _is_plain(inputs[source])]
    own = over[:1] if 0 not in node.external else []
    return {"over": (*own, -1)[0], "fresh": int(_ALWAYS_FRESH / scale)}


def _is_plain(operand: Variable | int) -> bool:
    """Whether a copy of an operand has its layout: that of a blocked one has not, which made a sum 5 times slower."""
    return isinstance(operand, Variable) and not operand.blocked


def refuse(training: TrainingGraph, node: TrainingNode) -> None:
    """Checks that a node may run outside of the original graph.

    Raises:
        UnmeasurableError: it must not.
    """
    forward = forward_node(training, node)
    operator = forward or node
    facts = spec(operator.op)
    if not (facts.gradient.in_gradients if forward is None and not node.forward else facts.cost.measurable):
        raise UnmeasurableError(f"{node.op} is not known to be safe to run on its own")
    if facts.random.draws(
        {**operator.attrs, **facts.random.attrs_without_rng}
    ):  # the process that measures has none of MXNet's generators
        raise UnmeasurableError(f"{node.op} draws random numbers of its own")


def excess(training: TrainingGraph, number: int) -> float:
    """Returns the size of a node as a multiple of the largest that is timed whole, at least 1.

    The gradient of a product is as large as the product, to which its seconds belong.
    """
    product = product_or_self(training, number)
    node = training.nodes[product]
    needed = work(training, node)
    if not needed.flops:
        return max(1.0, needed.bytes / _MOST_BYTES)
    if needed.flops <= _MOST_FLOPS and needed.bytes <= 4 * _MOST_BYTES:
        return 1.0  # MXNet need not be asked which inputs a part would have
    # a part of the batch reads all parameters: computing with it must take longer
    parameters = parameter_bytes(training, product)
    touched = _TOUCHED_BY_GRADIENTS if product != number and spec(node.op).layout.source else 1
    most = max(_MOST_FLOPS, touched * parameters / BYTES_PER_SECOND / _READING_PART * FLOPS_PER_SECOND)
    return max(1.0, needed.flops / most, (needed.bytes - parameters) / (4 * _MOST_BYTES))


def product_or_self(training: TrainingGraph, number: int) -> int:
    """The product that a node is the gradient of; of others the node itself."""
    product = product_of(training, number)
    return number if product is None else product


def parameter_bytes(training: TrainingGraph, number: int) -> int:
    """The bytes of the inputs of which a part of an operator's batch reads all."""
    inputs = {entry[:2]: training.type_of(entry) for entry in training.nodes[number].inputs}
    cut = _Sizes.of(training, number, _ANY_PART, frozenset()).smaller
    return sum(tensor.bytes for entry, tensor in inputs.items() if cut.get(entry) == tensor)


def _attributes(training: TrainingGraph, node: TrainingNode) -> dict[str, str]:
    operator = forward_node(training, node) or node
    attrs = {**attributes(training, node), **spec(operator.op).random.attrs_without_rng}
    return {**attrs, "num_args": str(len(node.inputs))} if spec(node.op).counts_inputs else attrs


def _operand(training: TrainingGraph, number: int, entry: Entry, sizes: _Sizes) -> Variable | int:
    node = training.nodes[number]
    forward = forward_node(training, node)
    is_own_output = forward is not None and entry.node == node.control_deps[0]
    # a state or index must be what the operator itself wrote; of plain numbers each copy gets its own
    if is_own_output and ((forward or node).stateful or training.type_of(entry).dtype not in _FLOATS):
        return entry.index
    return _variable(training, entry, sizes, (forward or node).op)


def _forward_inputs(training: TrainingGraph, forward: TrainingNode | None, sizes: _Sizes) -> tuple[Variable, ...]:
    if forward is None:
        return ()
    return tuple(_variable(training, entry, sizes, forward.op) for entry in forward.inputs)


def _variable(training: TrainingGraph, entry: Entry, sizes: _Sizes, op: str) -> Variable:
    below = sizes.rows if spec(op).cost.is_index and entry[:2] == sizes.first_input else 0
    tensor = sizes.type_of(training, entry)
    return Variable(tensor.shape, tensor.flag, is_blocked(training, entry, sizes.blocked), below)


@dataclass(frozen=True)
class _Sizes:
    """Types of the entries around an operator, with a smaller leading dimension if it is too large.

    ``smaller`` maps entries, ``outputs`` the full shapes of the operator's outputs, which their gradients share.
    """

    first_input: tuple[int, ...]
    rows: int
    blocked: frozenset[int]
    smaller: Mapping[tuple[int, ...], TensorType] = field(default_factory=dict)
    outputs: Mapping[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    scale: float = 1.0

    def type_of(self, training: TrainingGraph, entry: Entry) -> TensorType:
        """The type that an entry has in the microbenchmark."""
        full = training.type_of(entry)
        cut_type = self.smaller.get(entry[:2])
        return cut_type or TensorType(self.outputs.get(full.shape, full.shape), full.flag)

    @staticmethod
    def of(training: TrainingGraph, number: int, excess: float, blocked: frozenset[int]) -> _Sizes:
        """The sizes around operator ``number``, cut where that is possible."""
        node = training.nodes[number]
        first = node.inputs[0][:2] if node.inputs else ()
        rows = training.type_of(node.inputs[1]).shape[0] if spec(node.op).cost.is_index else 0
        whole = _Sizes(first, rows, blocked)
        if excess <= 1:
            return whole
        tensors = [training.type_of(entry) for entry in node.inputs]
        for cut in (_cut_batch, _cut_all):
            with contextlib.suppress(mx.MXNetError, UnmeasurableError):
                return whole._resized(training, number, *cut(node, tensors, excess))
        return whole

    def _resized(
        self, training: TrainingGraph, number: int, inputs: Sequence[TensorType], part: int, length: int
    ) -> _Sizes:
        """The operator with these inputs, if it has outputs of ``part`` in ``length`` elements then."""
        node = training.nodes[number]
        shapes = _output_shapes(node.op, _attributes(training, node), inputs, len(node.outputs))
        before, after = node.outputs[0].shape, shapes[0]
        if spec(node.op).cost.flops is not None:  # the weight of a loss may lead with more than its batch
            before, after = before[:1], after[:1]
        if math.prod(before) * part != math.prod(after) * length:
            raise UnmeasurableError(f"{node.op} does not scale with its leading dimension")
        smaller: dict[tuple[int, ...], TensorType] = {entry[:2]: tensor for entry, tensor in zip(node.inputs, inputs)}
        outputs = {}
        for index, (tensor, shape) in enumerate(zip(node.outputs, shapes)):
            smaller[number, index] = TensorType(shape, tensor.flag)
            outputs[tensor.shape] = shape
        return _Sizes(self.first_input, self.rows, self.blocked, smaller, outputs, length / part)


_Cut = Tuple[List[TensorType], int, int]


def _cut_batch(node: TrainingNode, tensors: Sequence[TensorType], excess: float) -> _Cut:
    """Inputs smaller by about ``excess`` in the largest leading dimension; the length that it keeps, and the whole."""
    batched = 1 if spec(node.op).cost.has_parameters else len(tensors)
    length = max((tensor.shape[0] for tensor in tensors[:batched] if tensor.shape), default=1)
    part = min(length, max(_SMALLEST_PART, int(length / excess)))
    is_cut = [position < batched and tensor.shape[:1] == (length,) for position, tensor in enumerate(tensors)]
    return [_with_rows(tensor, part) if cut else tensor for tensor, cut in zip(tensors, is_cut)], part, length


def _cut_all(node: TrainingNode, tensors: Sequence[TensorType], excess: float) -> _Cut:
    """The same in proportion, where heads, sentences and the bits of masks are leading dimensions of one operator.

    Its output leads with the largest of heads and sentences; inputs of other lengths stay as they are.
    """
    length = (*node.outputs[0].shape, 1)[0]
    rows = [tensor.shape[0] if tensor.shape else 1 for tensor in tensors]
    rows = [number if min(number, length) > 1 and 0 in (number % length, length % number) else 0 for number in rows]
    if not any(rows):
        raise UnmeasurableError(f"{node.op} has no input that leads with what its output leads with")
    least = int(np.lcm.reduce([1, *(length // math.gcd(length, number) for number in rows if number)]))
    part = max(least, int(length / excess) // least * least)
    return [
        _with_rows(tensor, number * part // length) if number else tensor for tensor, number in zip(tensors, rows)
    ], part, length  # fmt: skip


def _with_rows(tensor: TensorType, rows: int) -> TensorType:
    return TensorType((rows, *tensor.shape[1:]), tensor.flag)


def _output_shapes(
    op: str, attrs: Mapping[str, str], tensors: Sequence[TensorType], outputs: int
) -> list[tuple[int, ...]]:
    """The shapes of all outputs, also of those that no user sees: the statistics of LayerNorm."""
    variables = tuple(Variable(tensor.shape, tensor.flag) for tensor in tensors)
    symbol = load(Microbenchmark(op, attrs, variables, tuple(range(outputs))).graph(1))
    input_shapes = {f"copy0_{i}": tensor.shape for i, tensor in enumerate(tensors)}
    _, inferred, _ = symbol._infer_shape_impl(False, **input_shapes)  # without infer_shape's own words on what fails
    return [tuple(shape) for shape in inferred]
