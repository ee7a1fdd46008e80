"""Products with one weight that do not depend on each other: batched over time, or computed transposed.

EcoRNN (MICRO'18), section 3: which layout is the fastest depends on the device and the shape, so it is measured
(`echo.passes.refinements`). Families are found by structure alone, and each is found again from its first product.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import Mapping, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from echo.errors import GraphError
from echo.ir.graph import VARIABLE, Entry, Graph, Node
from echo.passes.patterns.graph_view import Fusion, View, local
from echo.plans.decisions import MissedFusion

NAME, TRANSPOSED = "batched_products", "transposed"
LEAST = 4  # members of a group
# MXNet adds this many gradients of one array in place, or more; fewer are all in memory before they are added.
_IN_PLACE = 8
CHUNK = 10  # products at once: gains most of what all steps at once would


@dataclass(frozen=True)
class ProductGroup:
    """FullyConnected nodes of one weight and bias, none of which depends on another, in their order.

    ``duplicates`` are the nodes that compute the same as a member, each with that member.
    """

    members: tuple[int, ...]
    duplicates: Mapping[int, int]


class Product(NamedTuple):
    """``members`` products x[m,k] w[n,k]' + b[n]."""

    m: int
    k: int
    n: int
    bias: bool
    dtype: str
    members: int

    def __str__(self) -> str:
        bias = " and bias" if self.bias else ""
        return f"{self.members} products [{self.m},{self.k}] x [{self.k},{self.n}]{bias} of {self.dtype}"


def product_groups(view: View) -> tuple[list[ProductGroup], list[MissedFusion]]:
    """All groups, and near-misses: products with one weight that depend on each other, or are all the same."""
    shared: dict[object, list[int]] = defaultdict(list)
    for number, node in enumerate(view.graph.nodes):
        if node.op == "FullyConnected" and number not in view.has_control_deps:
            shared[node.inputs[1:], tuple(sorted(node.attrs.items()))].append(number)
    candidates = [numbers for numbers in shared.values() if len(numbers) >= LEAST]
    depth = _depths(view.graph, candidates)
    found_groups, missed = [], []
    for column, numbers in enumerate(candidates):
        levels = sorted(numbers, key=lambda number: (depth[number, column], number))
        groups = [list(group) for _, group in groupby(levels, key=lambda number: int(depth[number, column]))]
        made = (_product_group(view, numbers) for numbers in groups)
        large = [group for group in made if len(group.members) >= LEAST]
        found_groups += large
        if not large:
            reason = f"each of {len(numbers)} products with this weight waits for the one before it"
            if len(groups) == 1:
                reason = f"the products with this weight are the same {len(numbers)} times"
            missed.append(MissedFusion(numbers[0], view.graph.nodes[numbers[0]].name, NAME, reason))
    return sorted(found_groups, key=lambda group: group.members[0]), missed


def _depths(graph: Graph, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """For each node and set of nodes, the most members of the set on a path to the node, itself included."""
    depth = np.zeros((len(graph.nodes), len(sets)), np.int32)
    columns = {number: column for column, numbers in enumerate(sets) for number in numbers}
    if not sets:
        return depth
    for number, node in enumerate(graph.nodes):
        below = [*{entry.node for entry in node.inputs}, *node.control_deps]
        if len(below) == 1:
            depth[number] = depth[below[0]]
        elif below:
            depth[number] = depth[below].max(axis=0)
        if number in columns:
            depth[number, columns[number]] += 1
    return depth


def _product_group(view: View, numbers: Sequence[int]) -> ProductGroup:
    first: dict[Entry, int] = {}
    duplicates = {}
    for number in numbers:
        member = first.setdefault(view.graph.nodes[number].inputs[0], number)
        if member != number:
            duplicates[number] = member
    return ProductGroup(tuple(first.values()), duplicates)


def fusion(view: View, group: ProductGroup, layout: str) -> Fusion:
    """Returns the group in this layout: "batched_products:10" for chunks of 10 or more, "transposed:64" for 64 rows.

    Raises:
        GraphError: there is no such layout.
    """
    nodes: list[Node] = []
    outputs: dict[Entry, Entry] = {}
    layout_name, size = _parsed(layout)
    if layout_name == TRANSPOSED:
        # the first one stays, so that MXNet visits the variables in the user's order
        for number in group.members[1:]:
            outputs[Entry(number)] = _transposed(view.graph.nodes[number], size, nodes)
    else:
        joined = _joined(view, group)
        for chunk in _chunks(group.members, size) if joined is None else [group.members]:
            parts, product = _batched([view.graph.nodes[number] for number in chunk], nodes)
            outputs.update(zip(map(Entry, chunk), parts))
            if joined is not None:
                outputs[Entry(joined)] = product
    replaced = frozenset(entry.node for entry in outputs)
    duplicates = [(Entry(duplicate), Entry(member)) for duplicate, member in group.duplicates.items()]
    outputs.update({duplicate: outputs[member] for duplicate, member in duplicates if member in outputs})
    label = f"{len(replaced.intersection(group.members))} products of one weight, {layout}"
    return Fusion(layout, group.members[0], tuple(nodes), outputs, replaced | set(group.duplicates), {}, label)


def _joined(view: View, group: ProductGroup) -> int | None:
    """The node that concatenates all products by rows, if there is one: then all at once need no more memory."""
    products = tuple(map(Entry, group.members))
    for reader in view.readers.get(products[0], ()):
        node = view.graph.nodes[reader]
        if reader >= 0 and node.op == "Concat" and node.attrs.get("dim", "1") == "0" and node.inputs == products:
            return reader
    return None


def _parsed(layout: str) -> tuple[str, int]:
    name, _, size = layout.partition(":")
    if name not in (NAME, TRANSPOSED) or not size.isdecimal() or not 0 < int(size) < 2**31:
        raise GraphError(f"fused: there is no layout {layout!r}")
    return name, int(size)


def _chunks(members: Sequence[int], size: int) -> list[Sequence[int]]:
    """Chunks of at least this size; the last members stay apart where the weight would get too few gradients."""
    most = max(1, len(members) // size)
    for count in range(most, 0, -1):
        apart = max(0, _IN_PLACE - count) if count > 1 else 0
        length = len(members) - apart
        if length >= count * size or count == 1:
            break
    edges = [length * index // count for index in range(count + 1)]
    return [members[begin:end] for begin, end in zip(edges, edges[1:])]


def _batched(chunk: Sequence[Node], nodes: list[Node]) -> tuple[list[Entry], Entry]:
    """Appends the nodes that compute a chunk at once; returns the entry of each member, and of all of them as rows.

    Slices cut the product apart: ``_split_v2`` looks for the part of each element among all parts, and takes 40 times
    as long on a CPU.
    """
    name, inputs = chunk[0].name + "_echo", tuple(node.inputs[0] for node in chunk)

    def put(node: Node) -> Entry:
        nodes.append(node)
        return local(len(nodes) - 1)

    # steps.py knows this name
    rows = put(Node("Concat", name + "_steps", inputs, attrs={"num_args": str(len(chunk)), "dim": "0"}))
    product = put(Node("FullyConnected", name + "_hoist", (rows, *chunk[0].inputs[1:]), attrs=chunk[0].attrs))
    apart = put(Node("Reshape", name + "_apart", (product,), attrs={"shape": f"(-4,{len(chunk)},-1,-2)"}))
    parts = []
    for index in range(len(chunk)):
        axis = {"axis": "0", "begin": str(index), "end": str(index + 1)}
        part = put(Node("slice_axis", f"{name}_part{index}", (apart,), attrs=axis))
        parts.append(put(Node("Reshape", f"{name}_rows{index}", (part,), attrs={"shape": "(-3,-2)"})))
    return parts, product


def _transposed(node: Node, rows: int, nodes: list[Node]) -> Entry:
    """Appends the nodes that compute (w x')' + b; returns the entry that takes the place of the node's."""
    x, weight, *bias = node.inputs
    attrs = {"num_hidden": str(rows), "no_bias": "True"}  # the gradients of dot take three times as long
    nodes.append(Node("FullyConnected", node.name + "_echo_columns", (weight, x), attrs=attrs))
    nodes.append(Node("transpose", node.name + "_echo_back", (local(len(nodes) - 1),)))
    for vector in bias:
        nodes.append(Node("broadcast_add", node.name + "_echo_bias", (local(len(nodes) - 1), vector)))
    return local(len(nodes) - 1)


def found_at(view: View, match_sites: Sequence[tuple[str, int]]) -> list[Fusion]:
    """The layouts of a plan, which may come from anywhere.

    Raises:
        GraphError: there is no such group, or no such layout.
    """
    group_at = {group.members[0]: group for group in product_groups(view)[0]} if match_sites else {}
    fusions = []
    for layout, number in match_sites:
        if number not in group_at:
            raise GraphError(f"fused: node {number} is not the first of a group of products, for {layout!r}")
        fusions.append(fusion(view, group_at[number], layout))
    return fusions


def is_layout(name: str) -> bool:
    """Whether a match site of a plan is that of a group of products."""
    return name.startswith((NAME + ":", TRANSPOSED + ":"))


def sample(product: Product) -> Graph:
    """The products alone, as the user has them; their arrays are w, b, x0, x1, ..."""
    names = ["x0", "w", *(["b"] if product.bias else []), *(f"x{index}" for index in range(1, product.members))]
    at = {name: Entry(number) for number, name in enumerate(names)}
    weights = (at["w"], at["b"]) if product.bias else (at["w"],)
    attrs = {"num_hidden": str(product.n), "no_bias": str(not product.bias)}
    nodes = [Node(VARIABLE, name) for name in names]
    nodes += [Node("FullyConnected", f"y{index}", (at[f"x{index}"], *weights), attrs=attrs)
              for index in range(product.members)]  # fmt: skip
    return Graph.of(nodes, map(Entry, range(len(names), len(nodes))))
