"""The nodes of a training graph that cost the same, in groups: each is measured, or estimated, once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import AbstractSet, Iterable, Mapping

from echo.estimators.products import is_added_apart, product_of, read_outputs
from echo.estimators.roofline import Work, work
from echo.estimators.signatures import (
    attributes,
    blocked_nodes,
    forward_node,
    is_blocked,
    is_free,
    signature,
    unrolled_nodes,
)
from echo.ir.ops import SIZE_ATTRIBUTES, spec
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode


@dataclass(frozen=True)
class Group:
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


def groups_of(training: TrainingGraph, onednn: bool = False) -> tuple[list[Group], list[int | None]]:
    """The groups, and the group of every node (None where nothing runs).

    ``onednn``: oneDNN computes gradients (`is_added_apart`).
    """
    blocked, unrolled, read = blocked_nodes(training), unrolled_nodes(training), read_outputs(training)
    tensors = [
        [(tensor.shape, tensor.flag, number in blocked) for tensor in node.outputs]
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


def _merge(
    training: TrainingGraph,
    same: Iterable[list[int]],
    blocked: AbstractSet[int],
    unrolled: AbstractSet[int],
    read: Mapping[int, tuple[int, ...]],
) -> tuple[list[Group], list[int | None]]:
    # nodes of one signature may differ in annotations
    by_key: dict[str, list[int]] = {}
    for numbers in same:
        first = numbers[0]
        left_out = len(training.nodes[first].outputs) - len(read.get(first, training.nodes[first].outputs))
        computed = f"[{','.join(map(str, read[first]))}]" if left_out else ""
        by_key.setdefault(signature(training, first, blocked, unrolled) + computed, []).extend(numbers)
    group_of: list[int | None] = [None] * len(training.nodes)
    groups: list[Group] = []
    for key, numbers in by_key.items():
        for number in numbers:
            group_of[number] = len(groups)
        first = numbers[0]
        node, computed_outputs = training.nodes[first], read.get(first, ())
        light = node.forward and spec(node.op).flops is None
        needed, product = work(training, node), product_of(training, first)
        family = (*_family(training, node, blocked), first in unrolled, computed_outputs, _regime(needed))
        groups.append(Group(first, len(numbers), key, family, needed, light, node.random, product, computed_outputs))
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
