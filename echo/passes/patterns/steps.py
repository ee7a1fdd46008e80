"""Steps that one layer splits apart and the next puts together again: both then share one array."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.attributes import is_true
from echo.ir.graph import Entry, Node
from echo.passes.patterns.graph_view import Fusion, View, local

NAME = "steps"
_SWAP = {"dim1": "0", "dim2": "1"}


class _Split(NamedTuple):
    """A split of an array into all parts along an axis, which the parts do not have any more."""

    source: Entry
    axis: str
    reverse: bool


def match(view: View, number: int) -> Fusion | None:
    """The array that takes the place of this node, if it joins all steps of that array beside a fused operator."""
    node = view.graph.nodes[number]
    parts = None if number in view.has_control_deps else _parts(view, node)
    if parts is None:
        return None
    axis, entries = parts
    if not entries:
        return None
    if not node.name.endswith("_echo_steps") and not view.node(entries[0]).name.endswith("_echo_split"):
        return None
    split = _split(view, entries)
    if split is None:
        return None
    nodes: list[Node] = []

    def then(op: str, attrs: dict[str, str]) -> None:
        source = local(len(nodes) - 1) if nodes else split.source
        nodes.append(Node(op, f"{node.name}_echo{len(nodes)}", (source,), attrs=attrs))

    if split.reverse:
        then("reverse", {"axis": f"({split.axis},)"})
    if split.axis != ("0" if axis == "rows" else axis):
        then("SwapAxis", _SWAP)
    if axis == "rows":
        then("Reshape", {"shape": "(-3,-2)"})
    array = local(len(nodes) - 1) if nodes else split.source
    return Fusion(NAME, number, tuple(nodes), {Entry(number): array}, frozenset({number}), {}, "steps put together")


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


def _split(view: View, entries: list[Entry]) -> _Split | None:
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
    return _Split(node.inputs[0], axis, count > 1 and order[0] > 0)
