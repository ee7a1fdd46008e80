"""Whether a fused graph is legal: a topological order exists, and shapes and types stay as they were."""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Iterator, Mapping, Optional, Sequence

from echo.ir.graph import VARIABLE, Entry, Graph, Node, num_outputs
from echo.ir.ops import may_draw
from echo.ir.training_node import TensorType
from echo.passes.patterns.graph_view import Fusion, local, plain
from echo.passes.patterns.substitute import applied

# The user's order of arguments and of random numbers, in a graph in which nodes were replaced.

DRAW_ATTRIBUTE = "__echo_draw__"  # while a graph is fused; nothing reads it
_MADE = "_echo_"  # in names of nodes that are made of the user's, after the name of that
ORDER_ATTRIBUTE = "__echo_order__"  # keeps MXNet from merging a node that waits with an equal one; nothing reads it


def numbered(graph: Graph) -> Graph:
    """The graph in which nodes that may draw random numbers are told apart by an attribute, where names do not do.

    One block of Gluon that is called twice gives two nodes of one name.
    """
    draws = {number: node for number, node in enumerate(graph.nodes) if _draws(node)}
    names = {node.name for node in draws.values() if _MADE not in node.name}
    if len(names) == len(draws):
        return graph
    return graph.with_attrs(
        {number: {DRAW_ATTRIBUTE: str(number)} for number, node in draws.items() if node.takes_attrs}
    )


def unnumbered(graph: Graph) -> Graph:
    """The graph without the attribute of `numbered`."""
    return graph.without_attrs(DRAW_ATTRIBUTE)


def ordered(fused_graph: Graph, original: Graph) -> Graph | None:
    """The graph with the variables in the user's order, None where that is impossible.

    MXNet orders variables as it visits them, depth first, control dependencies last. A fused operator may read its
    inputs in another order than the user's nodes did. Then the operator before the first variable that comes too early
    gets control dependencies on all variables that are still to come; without such an operator, a copy of the variable
    before it gets them. MXNet moves control dependencies to an equal node that it visits earlier (EliminateCommonExpr);
    the attribute makes the node equal to none. A Custom operator keeps state, so it is equal to none anyway. Both
    graphs are `numbered`.
    """
    draws, still_draw = _random(original), _random(fused_graph)
    silent = {
        _name(node) for node in filter(_draws, original.nodes) if node.op == "RNN"
    }  # where one is replaced (`rnn`)
    gone = silent.difference(still_draw)
    if still_draw != [name for name in draws if name not in gone] or len(set(draws)) < len(draws):
        return None
    expected, got = original.variable_names, fused_graph.variable_names
    if len(set(expected)) < len(expected) or sorted(got) != sorted(expected):
        return None  # variables of the same name cannot be told apart
    if got == expected:
        return fused_graph
    place = {fused_graph.nodes[number].name: number for number in fused_graph.arg_nodes}
    early = next(place[name] for name, expected_name in zip(got, expected) if name != expected_name)
    waits = max((number for number in range(early) if not fused_graph.nodes[number].is_variable), default=None)
    repair = _copy_before(fused_graph, early) if waits is None else (waits, (fused_graph.nodes[waits],))
    if repair is None:
        return None
    at, nodes = repair
    late = tuple(place[name] for name in expected if place[name] >= (early if waits is None else waits))
    unequal = {ORDER_ATTRIBUTE: "1"} if nodes[0].takes_attrs else {}
    waiting = nodes[0].with_attrs(unequal)._with(control_deps=(*nodes[0].control_deps, *late))
    nodes = (waiting, *nodes[1:])
    outputs = {Entry(at, k): local(len(nodes) - 1, k) for k in range(fused_graph.num_outputs(at))}
    repaired = applied(fused_graph, [Fusion("order", at, nodes, outputs, frozenset({at}), {}, "")], copies=False)
    return repaired if repaired is not None and repaired.variable_names == expected else None


def _copy_before(graph: Graph, variable: int) -> tuple[int, tuple[Node, Node]] | None:
    """The first reader of a variable, which then reads a copy of its input before the variable; None if it has none."""
    reader = next(number for number, node in enumerate(graph.nodes) if variable in (e.node for e in node.inputs))
    node = graph.nodes[reader]
    index = [entry.node for entry in node.inputs].index(variable)
    if index == 0:
        return None
    copy = Node("_copy", f"{node.name}_echo_order", (node.inputs[index - 1],))
    return reader, (copy, node._with(inputs=(*node.inputs[: index - 1], local(0), *node.inputs[index:])))


def _random(graph: Graph) -> list[str]:
    """The user's operators that may draw random numbers, by number or name, in the order in which MXNet visits them."""
    return [_name(node) for node in filter(_draws, graph.nodes)]


def _name(node: Node) -> str:
    return node.attrs.get(DRAW_ATTRIBUTE) or node.name.partition(_MADE)[0]


def _draws(node: Node) -> bool:
    return not node.is_variable and may_draw(node.op, node.attrs)


# Whether fused operators compute arrays like those that they take the place of. MXNet is asked, so that it holds for
# all patterns, whatever they match.

Types = Mapping[Entry, TensorType]
# The types of all entries of a graph whose variables have these types, by name; None where MXNet refuses the graph.
Infer = Callable[[Graph, Mapping[str, TensorType]], Optional[Types]]


def check_inferred_types(fusions: Sequence[Fusion], types: Types, infer: Infer) -> dict[int, str]:
    """Why some of the fusions cannot stand where they would, by anchor; ``types`` are those of the user's entries.

    Steps of a layer have equal operators on arrays of equal types: MXNet sees one of them, and all kinds at once.
    """
    kinds: dict[object, list[Fusion]] = {}
    for fusion in fusions:
        kinds.setdefault(_kind(fusion, types), []).append(fusion)
    firsts = [alike[0] for alike in kinds.values()]
    if not firsts or _types_blocker(firsts, types, infer) == "":
        return {}
    reasons = {first.anchor: _types_blocker([first], types, infer) for first in firsts}
    return {
        fusion.anchor: reasons[alike[0].anchor]
        for alike in kinds.values() if reasons[alike[0].anchor] for fusion in alike
    }  # fmt: skip


def _types_blocker(fusions: Sequence[Fusion], types: Types, infer: Infer) -> str:
    """Why one of these fusions does not fit, by what MXNet infers of a graph that holds them alone."""
    graph, variables, pairs = _side_by_side(fusions, types)
    inferred = infer(graph, variables)
    if inferred is None:
        return "MXNet finds no shapes for the fused operator"
    for original, new in pairs:
        if types[original] != inferred[new]:
            return f"expected {types[original]}, the fused operator gives {inferred[new]}"
    return ""


def _side_by_side(
    fusions: Sequence[Fusion], types: Types
) -> tuple[Graph, dict[str, TensorType], list[tuple[Entry, Entry]]]:
    """A graph of the new nodes alone, the types of its variables, and the user's entries with those in their place."""
    nodes: list[Node] = []
    counts: list[int] = []
    variables: dict[str, TensorType] = {}
    pairs: list[tuple[Entry, Entry]] = []

    def add(node: Node, outputs: int) -> int:
        nodes.append(node)
        counts.append(outputs)
        return len(nodes) - 1

    for fusion in fusions:
        at: dict[Entry, Entry] = {}
        for entry in dict.fromkeys(_read(fusion)):
            name = f"x{len(variables)}"
            variables[name] = types[entry]
            at[entry] = Entry(add(Node(VARIABLE, name), 1))
        first = len(nodes)
        outputs = _outputs(fusion)

        def moved(entry: Entry, at: Mapping[Entry, Entry] = at, first: int = first) -> Entry:
            return at[plain(entry)] if entry.node >= 0 else Entry(first - 1 - entry.node, entry.index)

        for position, node in enumerate(fusion.nodes):
            add(node._with(inputs=tuple(map(moved, node.inputs)), name=f"n{len(nodes)}"), outputs[position])
        pairs += [(plain(original), moved(new)) for original, new in fusion.outputs.items() if plain(original) in types]
    return Graph.of(nodes, dict.fromkeys(new for _, new in pairs), counts), variables, pairs


def _kind(fusion: Fusion, types: Types) -> object:
    """A value that is equal for fusions of which MXNet would say the same."""
    read = list(dict.fromkeys(_read(fusion)))
    places = {entry: place for place, entry in enumerate(read)}
    nodes = tuple(
        (node.op, *sorted(node.attrs.items()),
         *((entry.node, entry.index) if entry.node < 0 else places[plain(entry)] for entry in node.inputs))
        for node in fusion.nodes
    )  # fmt: skip
    outputs = tuple((new, types.get(plain(original))) for original, new in fusion.outputs.items())
    return nodes, tuple(types[entry] for entry in read), outputs


def _read(fusion: Fusion) -> Iterator[Entry]:
    """The user's entries that the new nodes, or the readers of what they replace, read."""
    inputs = (entry for node in fusion.nodes for entry in node.inputs)
    return (plain(entry) for entry in (*inputs, *fusion.outputs.values()) if entry.node >= 0)


def _outputs(fusion: Fusion) -> list[int]:
    """The least number of outputs of each new node."""
    counts = [max(1, num_outputs(node)) for node in fusion.nodes]
    for entry in (*fusion.outputs.values(), *(entry for node in fusion.nodes for entry in node.inputs)):
        if entry.node < 0:
            counts[-1 - entry.node] = max(counts[-1 - entry.node], entry.index + 1)
    return counts


# Recurrences in which every rounding grows: cells that normalize the product of their state.

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
