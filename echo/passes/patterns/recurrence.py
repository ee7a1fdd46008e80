"""Recurrences in which every rounding grows: cells that normalize the product of their state."""

from __future__ import annotations

from collections import defaultdict

from echo.ir.graph import Entry, Graph

_PRODUCTS = frozenset({"FullyConnected", "dot", "batch_dot", "_npi_matmul", "_npi_dot"})
_FAR = 2  # products: paths with two or more are not counted


def normed_state(graph: Graph) -> str:
    """The name of a layer norm whose input is one product away from its own output a step before; empty without one.

    Cells of Ba et al. (2016), section 3.1, have such layer norms. A small state, as at the start, is normalized to
    variance one, and differences grow by the same factor, step by step. With initial weights, float32 gradients of such
    models in MXNet are 5e-5 to 3e-3 off from float64, and move as far where weights change by half of their last bit.
    """
    norms: dict[Entry, list[int]] = defaultdict(list)
    for number, node in enumerate(graph.nodes):
        if node.op == "LayerNorm" and len(node.inputs) > 1:
            norms[node.inputs[1]].append(number)
    shared = {number: gamma for gamma, numbers in norms.items() if len(numbers) > 1 for number in numbers}
    products: list[dict[Entry, int]] = []  # for each node: products on the shortest path from a norm of this gamma
    for number, node in enumerate(graph.nodes) if shared else ():
        counts: dict[Entry, int] = {}
        for entry in node.inputs:
            for gamma, count in products[entry.node].items():
                counts[gamma] = min(count, counts.get(gamma, _FAR))
        if node.op in _PRODUCTS:
            counts = {gamma: count + 1 for gamma, count in counts.items() if count + 1 < _FAR}
        if number in shared:
            if counts.get(shared[number]) == 1:
                return node.name
            counts[shared[number]] = 0
        products.append(counts)
    return ""
