"""Steps that one layer splits apart and the next puts together again: both then share one array."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.graph import Entry, Node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import Fusion, View, local

NAME = "steps"
_SWAP = {"dim1": "0", "dim2": "1"}
_JOINS = frozenset({"stack", "Concat", "reverse", "SwapAxis", "Reshape"})


class _Split(NamedTuple):
    """Splits of arrays into all parts along an axis, which the parts do not have any more.

    Each step is a part of the only array, or those of all arrays side by side.
    """

    sources: tuple[Entry, ...]
    axis: str
    reverse: bool


def match(view: View, number: int) -> Fusion | None:
    """The array that takes the place of this node, if it joins all steps of arrays beside a fused operator."""
    node = view.graph.nodes[number]
    parts = None if number in view.has_control_deps else _parts(view, node)
    if parts is None or not parts[1]:
        return None
    axis, entries = parts
    columns = _side_by_side(view, entries)
    if not node.name.endswith("_echo_steps") and not view.node(columns[0][0]).name.endswith("_echo_split"):
        return None
    split = _split(view, columns)
    if split is None:
        return None
    nodes: list[Node] = []

    def then(op: str, sources: tuple[Entry, ...], attrs: dict[str, str]) -> tuple[Entry, ...]:
        nodes.append(Node(op, f"{node.name}_echo{len(nodes)}", sources, attrs=attrs))
        return (local(len(nodes) - 1),)

    array = split.sources
    if len(array) > 1:
        array = then("Concat", array, {"dim": "2", "num_args": str(len(array))})
    if split.reverse:
        array = then("reverse", array, {"axis": f"({split.axis},)"})
    if split.axis != ("0" if axis == "rows" else axis):
        array = then("SwapAxis", array, _SWAP)
    if axis == "rows":
        array = then("Reshape", array, {"shape": "(-3,-2)"})
    return Fusion(NAME, number, tuple(nodes), {Entry(number): array[0]}, frozenset({number}), {}, "steps put together")


def equal(view: View) -> list[Fusion]:
    """Arrays that are put together alike for several fused operators: the first takes the place of all."""
    first: dict[tuple[object, ...], int] = {}
    taken: dict[int, int] = {}
    for number, node in enumerate(view.graph.nodes):
        if node.op not in _JOINS or "_echo" not in node.name or number in view.has_control_deps:
            continue
        inputs = tuple((taken.get(entry.node, entry.node), entry.index) for entry in node.inputs)
        place = first.setdefault((node.op, tuple(sorted(node.attrs.items())), inputs), number)
        if place != number:
            taken[number] = place
    return [
        Fusion(NAME, number, (), {Entry(number): Entry(place)}, frozenset({number}), {}, "steps put together")
        for number, place in taken.items()
    ]


def _side_by_side(view: View, entries: list[Entry]) -> list[list[Entry]]:
    """For each array that the steps are made of, its parts: both directions of a layer, or one array alone."""
    joined = [view.inputs(entry, ("Concat",)) for entry in entries]
    widths = {len(parts) for parts in joined if parts}
    if not all(joined) or len(widths) != 1 or any(view.node(entry).attrs.get("dim", "1") != "1" for entry in entries):
        return [entries]
    return [list(column) for column in zip(*(parts for parts in joined if parts))]


def _parts(view: View, node: Node) -> tuple[str, list[Entry]] | None:
    """The entries that a node joins, with the new axis along which it does, or "rows" for the first axis."""
    if node.op == "stack":
        axis = node.attrs.get("axis", "0")
        return (axis, list(node.inputs)) if axis in ("0", "1") else None
    axis = node.attrs.get("dim", "1")
    if node.op != "Concat" or axis not in ("0", "1"):
        return None
    expanded = [view.inputs(entry, ("expand_dims",)) for entry in node.inputs]
    if all(expanded) and all(view.node(entry).attrs.get("axis") == axis for entry in node.inputs):
        return axis, [entry[0] for entry in expanded if entry]
    return ("rows", list(node.inputs)) if axis == "0" else None


def _split(view: View, columns: list[list[Entry]]) -> _Split | None:
    splits = [_of_one(view, entries) for entries in columns]
    first = splits[0]
    if first is None or any(split is None or split[1:] != first[1:] for split in splits):
        return None
    return first._replace(sources=tuple(split.sources[0] for split in splits if split))


def _of_one(view: View, entries: list[Entry]) -> _Split | None:
    if len({entry.node for entry in entries}) != 1:
        return None
    node = view.node(entries[0])
    axis = node.attrs.get("axis", "1")
    if node.op not in ("SliceChannel", "_split_v2") or not is_true(node.attrs, "squeeze_axis") or axis not in "01":
        return None
    count = int(node.attrs.get("num_outputs" if node.op == "SliceChannel" else "sections", "0"))
    order = [entry.index for entry in entries]
    if order not in (list(range(count)), list(range(count))[::-1]):
        return None
    return _Split((node.inputs[0],), axis, count > 1 and order[0] > 0)
