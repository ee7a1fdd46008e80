"""Which variables a plan reads again in backward where MXNet's own gradients read maps of the forward pass, or the
other way round.
"""

from __future__ import annotations

from typing import AbstractSet, Iterator, Mapping

from echo.ir.graph import PREFIX, Entry, Graph, Node
from echo.ir.op_spec import NEVER, PLAN_ATTRIBUTE
from echo.ir.ops import spec

MIXTURE = "the gradients would be those of a mixture of old and new values"


def variables_read_in_backward(graph: Graph, user: Graph) -> dict[int, tuple[int, ...]]:
    """The variables of a graph as it is bound that nodes read at another time than in the user's, with those nodes.

    These are nodes that run again, and fused operators, whose gradients compute their maps again; and of fused
    operators and products that were put together also what they read through nodes that are not the user's, as a copy:
    his gradients may read the variable itself in backward.
    """
    names = {node.name for node in user.nodes}
    new_nodes = {number for number, node in enumerate(graph.nodes) if node.name not in names}
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        fused = node.op.startswith(PREFIX)
        for place, entry in enumerate(node.inputs):
            again = (PLAN_ATTRIBUTE in node.attrs or fused) and graph.nodes[entry.node].is_variable
            copied = entry.node in new_nodes and (fused or (number in new_nodes and spec(node.op).heavy))
            for variable in _above(graph, entry, new_nodes) if (again or copied) and _reads(node, place) else ():
                readers.setdefault(variable, []).append(number)
    return {variable: tuple(dict.fromkeys(numbers)) for variable, numbers in sorted(readers.items())}


def _above(graph: Graph, entry: Entry, new_nodes: AbstractSet[int]) -> Iterator[int]:
    """The variables that an entry is, or whose numbers it is made of by nodes that are not the user's."""
    seen, above = set(), [entry.node]
    while above:
        number = above.pop()
        node = graph.nodes[number]
        if number in seen:
            continue
        seen.add(number)
        if node.is_variable:
            yield number
        elif number in new_nodes:
            above += [source.node for place, source in enumerate(node.inputs) if _reads(node, place)]


def _reads(node: Node, place: int) -> bool:
    """Whether a result depends on an input that can be watched."""
    return not spec(node.op).exempt_from_write_check.get(place, NEVER)(node.attrs)


def written(name: str) -> str:
    """The beginning of a message about a variable that was written too early."""
    return f"{name!r} was written between a forward pass and its backward pass"


def texts(graph: Graph, again: Mapping[int, tuple[int, ...]]) -> dict[str, str]:
    """A message for each of these variables, by its name, in case that it is written too early."""
    return {graph.nodes[number].name: _text(graph, number, readers) for number, readers in again.items()}


def _text(graph: Graph, variable: int, readers: tuple[int, ...]) -> str:
    first = graph.nodes[readers[0]]
    more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
    fused = [graph.nodes[number].name for number in readers if graph.nodes[number].op.startswith(PREFIX)]
    kept = tuple(graph.nodes[number].name for number in readers if graph.nodes[number].name not in fused)
    shown = f"keep={kept[:3] if len(kept) < 4 else (*kept[:3], '...')}" if kept else ""
    wish = " and ".join(wish for wish in (shown, "fuse=False" if fused else "") if wish)
    return (
        f"{written(graph.nodes[variable].name)}, and the plan computes {first.name!r} ({first.op}){more} from it again "
        f"in backward: {MIXTURE}. Write it after backward, or plan with {wish}, or train without echo (ECHO=0)"
    )
