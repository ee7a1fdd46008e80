"""Operators that cost the same: signatures, the work of each by the roofline model, and the products among them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import AbstractSet, Iterable, Mapping, Sequence

import numpy as np

from echo.ir.graph import VARIABLE, Entry
from echo.ir.ops import SIZE_ATTRIBUTES, spec
from echo.ir.training_graph import GRADIENT_SUM, TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode

# Seconds of operators that were not measured: launch time plus work over a rate (Williams et al., 2009).


@dataclass(frozen=True)
class Work:
    """Floating-point operations (0 for operators that only move data) and bytes read and written."""

    flops: float
    bytes: float


def work(training: TrainingGraph, node: TrainingNode) -> Work:
    """The operations of a node, and the bytes that it reads and writes."""
    forward = forward_node(training, node)
    moved = sum(tensor.bytes for tensor in node.outputs)
    if spec((forward or node).op).cost.gathers:
        moved = 2 * min([moved, *(training.type_of(entry).bytes for entry in node.inputs[:1] if forward)])
    else:
        read = (entry for position, entry in enumerate(node.inputs) if position not in node.shape_only)
        moved += sum(training.type_of(entry).bytes for entry in read)
    # the gradients of a product are two products
    return Work(_flops(training, forward) * 2 if forward else _flops(training, node), max(moved, 1))


def _flops(training: TrainingGraph, node: TrainingNode) -> float:
    formula = spec(node.op).cost.flops
    if formula is None or len(node.inputs) < 2:
        return 0.0
    return formula([training.type_of(entry).shape for entry in node.inputs], node.outputs[0].shape)


# Signatures: nodes of a training graph with equal operator, attributes, types and oneDNN layouts cost the same.

_BACKWARD = "_backward_"
_UNROLLED = 4  # operators alike that read one weight: steps of a layer, and not two layers that share one


def signature(
    training: TrainingGraph,
    number: int,
    blocked: AbstractSet[int] | None = None,
    unrolled: AbstractSet[int] | None = None,
) -> str:
    """A stable key of what a node computes: op, attributes that matter, types of inputs and outputs. No names.

    ``blocked`` and ``unrolled`` are what `blocked_nodes` and `unrolled_nodes` return, which are computed here if they
    are not given.
    """
    node = training.nodes[number]
    attrs = attributes(training, node)
    blocked = blocked_nodes(training) if blocked is None else blocked
    unrolled = unrolled_nodes(training) if unrolled is None else unrolled
    inputs = ";".join(f"{training.type_of(entry)}{'~' * is_blocked(training, entry, blocked)}" for entry in node.inputs)
    outputs = ";".join(map(str, node.outputs))
    options = ",".join(f"{key}={attrs[key]}" for key in sorted(attrs))
    return f"{node.op}({inputs})->{outputs}{{{options}}}{'*' * (number in unrolled)}"


def attributes(training: TrainingGraph, node: TrainingNode) -> dict[str, str]:
    """The operator's own attributes: those of the user's node, for its gradient too; annotations left out."""
    source = forward_node(training, node) or node
    return {key: text for key, text in source.attrs.items() if not key.startswith("__")}


def forward_node(training: TrainingGraph, node: TrainingNode) -> TrainingNode | None:
    """The forward node that a gradient node belongs to; None for forward nodes and sums of gradients."""
    if node.forward or not node.control_deps or not node.op.startswith(_BACKWARD):
        return None
    return training.nodes[node.control_deps[0]]


def unrolled_nodes(training: TrainingGraph) -> frozenset[int]:
    """The products of unrolled layers: they find their weight in the caches, where the steps before left it.

    Those of DeepSpeech2, with weights of up to 6.3 MB, took 0.65 times what they take from memory. Their gradients are
    no faster for it: they write the gradient of the weight, which MXNet adds to a sum.
    """
    weights = {
        number: (node.op, node.inputs[1].node)
        for number, node in enumerate(training.nodes)
        if node.forward
        and spec(node.op).cost.has_parameters
        and spec(node.op).cost.flops is not None
        and len(node.inputs) > 1
    }
    readers = Counter(weights.values())
    return frozenset(number for number, weight in weights.items() if readers[weight] >= _UNROLLED)


def blocked_nodes(training: TrainingGraph) -> frozenset[int]:
    """The nodes whose outputs oneDNN keeps in a blocked layout (on a CPU)."""
    blocked: set[int] = set()
    for number, node in enumerate(training.nodes):
        if node.is_variable or len(node.outputs[0].shape) not in (4, 5):
            continue
        layout = spec((forward_node(training, node) or node).op).layout
        if layout.source or (layout.propagates_layout and any(entry.node in blocked for entry in node.inputs)):
            blocked.add(number)
    return frozenset(blocked)


def is_blocked(training: TrainingGraph, entry: Entry, blocked: AbstractSet[int]) -> bool:
    """Whether oneDNN keeps this entry in a blocked layout, where ``blocked`` is what `blocked_nodes` returns."""
    if entry.node not in blocked:
        return False
    tensor = training.type_of(entry)
    return len(tensor.shape) in (4, 5) and tensor.dtype == "float32" and entry.index < _maps(training, entry.node)


def _maps(training: TrainingGraph, number: int) -> int:
    node = training.nodes[number]
    return len(node.outputs) if spec(node.op).layout.blocks_all else 1


def is_free(training: TrainingGraph, node: TrainingNode) -> bool:
    """Whether nothing runs for this node: a variable, a view of its input, an addition that its producer makes."""
    if spec(node.op).cost.is_free:
        return True
    for source, _, same in node.inplace:
        if same and len(node.outputs) == 1 and not node.external:
            return training.nodes[node.inputs[source].node].op != VARIABLE
    return False


# Gradients of products: which they are, and what those take that were not measured.
#
# Convolutions, fully connected layers, attention and recurrent layers are products here. Their gradients are most of
# a training step, and dear to measure. So only some are, and what others take follows their own product.

# The gradients of a product are two products: 2.2 times the forward time over the convolutions of ResNet-50, 2.4 and
# 2.5 over the fully connected layers of NMT and LM. Measured ones are from 1.8 (attention) to 3.4 (a convolution of
# 11 x 21).
GRADIENT_OF_PRODUCT = 2.3


def product_of(training: TrainingGraph, number: int) -> int | None:
    """The forward node of the gradient of a product, None for other nodes."""
    node = training.nodes[number]
    forward = forward_node(training, node)
    return node.control_deps[0] if forward is not None and spec(forward.op).cost.flops is not None else None


def read_outputs(training: TrainingGraph) -> dict[int, tuple[int, ...]]:
    """For each gradient of a product: the numbers of the outputs that are read, all where none is.

    MXNet computes no others: of the first layer no gradient of the data, in one of the nodes of a gradient that is
    split (`echo.ir.gradient_rules`) none of the weight.
    """
    begin, reads = training.first_entry, training.reads
    read = set((np.array(begin)[reads.source] + reads.index).tolist())
    read.update(map(training.entry_id, training.outputs))
    every = {
        number: range(len(node.outputs))
        for number, node in training.operators()
        if product_of(training, number) is not None
    }
    return {
        number: tuple(i for i in outputs if begin[number] + i in read) or tuple(outputs)
        for number, outputs in every.items()
    }


def is_added_apart(training: TrainingGraph, number: int) -> bool:
    """Whether a node is the sum of a weight's gradients, which oneDNN computes into another array and then adds up.

    MXNet has the gradient's own operator add it up: for a weight of 2048 x 512, it takes 0.6 ms longer then, as long as
    a sum of two arrays does. Of other operators, that takes no time.
    """
    node = training.nodes[number]
    if node.op != GRADIENT_SUM:
        return False
    added = node.inputs[1]
    product = product_of(training, added.node)
    return product is not None and added.index == 1 and spec(training.nodes[product].op).gradient.unfused_weight_grad


def share_of(op: str, read: Sequence[int]) -> float:
    """The part of the gradients of product ``op`` that a node computes of which these outputs are read.

    Where there are parameters, the gradients of data and weight, the first two outputs, are half of the work each.
    """
    return max(1, sum(output < 2 for output in read)) / 2 if spec(op).cost.has_parameters else 1.0


def gradient_of(seconds: float, size: float, known: Sequence[tuple[float, float]], share: float = 1.0) -> float:
    """Seconds of the gradient of a product that takes ``seconds``.

    ``known`` are sizes of gradients alike with the multiples of their products' seconds that they take; of these the
    one of the nearest size counts. Where there are none, ``share`` is the part of the gradients that it computes.
    """
    nearest = min(known, key=lambda pair: abs(math.log(pair[0] / size)), default=(size, share * GRADIENT_OF_PRODUCT))
    return nearest[1] * seconds


# The nodes of a training graph that cost the same, in groups: each is measured, or estimated, once.


@dataclass(frozen=True)
class OperatorGroup:
    """The nodes of one signature, which cost the same; ``number`` is the first of them.

    Where they are gradients of products, ``product`` is the forward node of that, and ``read`` are the outputs that are
    computed.
    """

    number: int
    count: int
    key: str
    family: tuple[object, ...]
    work: Work
    light: bool
    draws: bool
    product: int | None
    read: tuple[int, ...] = ()

    @property
    def size(self) -> float:
        """The FLOPs or bytes that the seconds of operators of this family grow with."""
        return self.work.flops or self.work.bytes


def groups_of(training: TrainingGraph, onednn: bool = False) -> tuple[list[OperatorGroup], list[int | None]]:
    """The groups, and the group of every node (None where nothing runs).

    ``onednn``: oneDNN computes gradients (`is_added_apart`).
    """
    blocked, unrolled, read = blocked_nodes(training), unrolled_nodes(training), read_outputs(training)
    types = _type_numbers(training)
    tensors = [
        [(types[id(tensor)], number in blocked) for tensor in node.outputs]
        for number, node in enumerate(training.nodes)
    ]
    members: dict[object, list[int]] = {}
    for number, node in enumerate(training.nodes):
        if is_free(training, node) and not (onednn and is_added_apart(training, number)):
            continue
        source = forward_node(training, node) or node
        inputs = [tensors[entry[0]][entry[1]] for entry in node.inputs]
        kind = number in unrolled, read.get(number, ())
        key = (node.op, tuple(source.attrs.items()), tuple(inputs), tuple(tensors[number]), kind)
        members.setdefault(key, []).append(number)
    return _merge(training, members.values(), blocked, unrolled, read)


def _type_numbers(training: TrainingGraph) -> dict[int, int]:
    """A number for the ``id`` of each type in the graph, equal for equal types: numbers take less time to compare."""
    by_id = {id(tensor): tensor for node in training.nodes for tensor in node.outputs}
    numbers: dict[TensorType, int] = {}
    return {key: numbers.setdefault(tensor, len(numbers)) for key, tensor in by_id.items()}


def _merge(
    training: TrainingGraph,
    same: Iterable[list[int]],
    blocked: AbstractSet[int],
    unrolled: AbstractSet[int],
    read: Mapping[int, tuple[int, ...]],
) -> tuple[list[OperatorGroup], list[int | None]]:
    # nodes of one signature may differ in annotations
    by_key: dict[str, list[int]] = {}
    for numbers in same:
        first = numbers[0]
        left_out = len(training.nodes[first].outputs) - len(read.get(first, training.nodes[first].outputs))
        computed = f"[{','.join(map(str, read[first]))}]" if left_out else ""
        by_key.setdefault(signature(training, first, blocked, unrolled) + computed, []).extend(numbers)
    group_of: list[int | None] = [None] * len(training.nodes)
    groups: list[OperatorGroup] = []
    for key, numbers in by_key.items():
        for number in numbers:
            group_of[number] = len(groups)
        first = numbers[0]
        node, computed_outputs = training.nodes[first], read.get(first, ())
        light = node.forward and spec(node.op).cost.flops is None
        needed, product = work(training, node), product_of(training, first)
        family = (*_family(training, node, blocked), first in unrolled, computed_outputs, _regime(needed))
        groups.append(
            OperatorGroup(first, len(numbers), key, family, needed, light, node.random, product, computed_outputs)
        )
    return groups, group_of


def _family(training: TrainingGraph, node: TrainingNode, blocked: AbstractSet[int]) -> tuple[object, ...]:
    attrs = attributes(training, node)
    options = tuple(sorted((key, text) for key, text in attrs.items() if key not in SIZE_ATTRIBUTES))
    patterns = []
    for entry in node.inputs[:4]:
        tensor = training.type_of(entry)
        patterns.append((tensor.flag, is_blocked(training, entry, blocked), tuple(size == 1 for size in tensor.shape)))
    return (node.op, options, tuple(patterns))


def _regime(needed: Work) -> int:
    """Operators of one kind and regime are limited by the same: their FLOPs for each byte differ by four times at most.

    Products of 16 rows read their weights, those of 1,000 compute.
    """
    return round(math.log(max(needed.flops / needed.bytes, 1.0), 4))
