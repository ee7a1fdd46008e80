"""Whether fused operators compute arrays like those that they take the place of. MXNet is asked, so that it holds for
all patterns, whatever they match.
"""

from __future__ import annotations

from typing import Callable, Iterator, Mapping, Optional, Sequence

from echo.ir.graph import VARIABLE, VERSION, Entry, Graph, Node, num_outputs
from echo.ir.training_node import TensorType
from echo.passes.patterns.graph_view import Fusion, plain

Types = Mapping[Entry, TensorType]
# The types of all entries of a graph whose variables have these types, by name; None where MXNet refuses the graph.
Infer = Callable[[Graph, Mapping[str, TensorType]], Optional[Types]]


def misfits(fusions: Sequence[Fusion], types: Types, infer: Infer) -> dict[int, str]:
    """Why some of the fusions cannot stand where they would, by anchor; ``types`` are those of the user's entries.

    Steps of a layer have equal operators on arrays of equal types: MXNet sees one of them, and all kinds at once.
    """
    kinds: dict[object, list[Fusion]] = {}
    for fusion in fusions:
        kinds.setdefault(_kind(fusion, types), []).append(fusion)
    firsts = [alike[0] for alike in kinds.values()]
    if not firsts or _why_not(firsts, types, infer) == "":
        return {}
    reasons = {first.anchor: _why_not([first], types, infer) for first in firsts}
    return {
        fusion.anchor: reasons[alike[0].anchor]
        for alike in kinds.values() if reasons[alike[0].anchor] for fusion in alike
    }  # fmt: skip


def _why_not(fusions: Sequence[Fusion], types: Types, infer: Infer) -> str:
    """Why one of these fusions does not fit, by what MXNet infers of a graph that holds them alone."""
    graph, variables, pairs = _side_by_side(fusions, types)
    inferred = infer(graph, variables)
    if inferred is None:
        return "MXNet finds no shapes for the fused operator"
    for user, new in pairs:
        if types[user] != inferred[new]:
            return f"expected {types[user]}, the fused operator gives {inferred[new]}"
    return ""


def _side_by_side(
    fusions: Sequence[Fusion], types: Types
) -> tuple[Graph, dict[str, TensorType], list[tuple[Entry, Entry]]]:
    """A graph of the new nodes alone, the types of its variables, and the user's entries with those in their place."""
    nodes: list[Node] = []
    starts = [0]
    variables: dict[str, TensorType] = {}
    pairs: list[tuple[Entry, Entry]] = []

    def add(node: Node, outputs: int) -> int:
        nodes.append(node)
        starts.append(starts[-1] + outputs)
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
        pairs += [(plain(user), moved(new)) for user, new in fusion.outputs.items() if plain(user) in types]
    heads = tuple(dict.fromkeys(new for _, new in pairs))
    arguments = tuple(number for number, node in enumerate(nodes) if node.is_variable)
    return Graph(tuple(nodes), heads, arguments, tuple(starts), VERSION), variables, pairs


def _kind(fusion: Fusion, types: Types) -> object:
    """A value that is equal for fusions of which MXNet would say the same."""
    read = list(dict.fromkeys(_read(fusion)))
    places = {entry: place for place, entry in enumerate(read)}
    nodes = tuple(
        (node.op, *sorted(node.attrs.items()),
         *((entry.node, entry.index) if entry.node < 0 else places[plain(entry)] for entry in node.inputs))
        for node in fusion.nodes
    )  # fmt: skip
    outputs = tuple((new, types.get(plain(user))) for user, new in fusion.outputs.items())
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
