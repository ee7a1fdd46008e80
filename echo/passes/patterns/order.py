"""The user's order of arguments and of random numbers, in a graph in which nodes were replaced."""

from __future__ import annotations

from echo.ir.graph import Entry, Graph, Node
from echo.passes.patterns.graph_view import Fusion, local
from echo.passes.patterns.substitute import applied

ORDER_ATTRIBUTE = "__echo_order__"  # keeps MXNet from merging a node that waits with an equal one; nobody reads it
_RANDOM = ("Dropout", "Custom", "random", "sample", "shuffle", "LeakyReLU", "normal", "uniform")


def ordered(made: Graph, user: Graph) -> Graph | None:
    """The graph with the variables in the order that they have for the user, None where it cannot be had.

    MXNet orders them as it comes to them, depth first, control dependencies last. Where a fused operator reads what it
    needs in another order than the user's nodes did, the operator before the first that comes too early waits for all
    that are to come; where there is none, a copy of the variable before it does. MXNet hands what a node waits for to
    an equal node that it comes to earlier (EliminateCommonExpr), hence the attribute, which makes it equal to none; a
    Custom operator keeps state, and is equal to none without.
    """
    if _random(made) != _random(user):
        return None
    wanted, found = _variables(user), _variables(made)
    if len(set(wanted)) < len(wanted) or sorted(found) != sorted(wanted):
        return None  # of variables with one name, nobody can tell which is which
    if found == wanted:
        return made
    place = {made.nodes[number].name: number for number in made.arg_nodes}
    early = next(place[name] for name, other in zip(found, wanted) if name != other)
    waits = max((number for number in range(early) if not made.nodes[number].is_variable), default=None)
    repair = _copy_before(made, early) if waits is None else (waits, (made.nodes[waits],))
    if repair is None:
        return None
    at, nodes = repair
    late = tuple(place[name] for name in wanted if place[name] >= (early if waits is None else waits))
    unequal = {ORDER_ATTRIBUTE: "1"} if nodes[0].takes_attrs else {}
    waiting = nodes[0].with_attrs(unequal)._with(control_deps=(*nodes[0].control_deps, *late))
    nodes = (waiting, *nodes[1:])
    outputs = {Entry(at, k): local(len(nodes) - 1, k) for k in range(made.num_outputs(at))}
    again = applied(made, [Fusion("order", at, nodes, outputs, frozenset({at}), {}, "")], copies=False)
    return again if again is not None and _variables(again) == wanted else None


def _copy_before(graph: Graph, variable: int) -> tuple[int, tuple[Node, Node]] | None:
    """The first reader of a variable, which reads another one before it: with a copy of that."""
    reader = next(number for number, node in enumerate(graph.nodes) if variable in (e.node for e in node.inputs))
    node = graph.nodes[reader]
    index = [entry.node for entry in node.inputs].index(variable)
    if index == 0:
        return None
    copy = Node("_copy", f"{node.name}_echo_order", (node.inputs[index - 1],))
    return reader, (copy, node._with(inputs=(*node.inputs[: index - 1], local(0), *node.inputs[index:])))


def _variables(graph: Graph) -> list[str]:
    return [graph.nodes[number].name for number in graph.arg_nodes]


def _random(graph: Graph) -> list[str]:
    """Operators that draw random numbers, in the order in which MXNet comes to them, by the user's names."""
    draws = {op: any(word in op for word in _RANDOM) for op in {node.op for node in graph.nodes}}
    return [node.name.partition("_echo_")[0] for node in graph.nodes if draws[node.op] or _drops(node)]


def _drops(node: Node) -> bool:
    layers, dropout = int(node.attrs.get("num_layers", "1")), float(node.attrs.get("p", "0"))
    return node.op == "RNN" and layers > 1 and dropout > 0
