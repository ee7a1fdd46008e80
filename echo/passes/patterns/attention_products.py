"""The two products of dot attention in the forms in which models have them, and their operands as kernels read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, NamedTuple, Sequence

from echo.ir.attributes import is_true
from echo.ir.graph import Entry, Node
from echo.passes.patterns.graph_view import View, local, split_attrs

BATCHED, SEVERAL = "batches", "batches of several axes"
INTERLEAVED = {"selfatt": "interleaved heads", "encdec": "interleaved heads of two arrays"}
LEADING = "..."
_BATCH_DOT = ("batch_dot", "_npx_batch_dot")
_ANY_AXES = ("_linalg_gemm2", "linalg_gemm2", "_npi_matmul")
_INTERLEAVED = "_contrib_interleaved_matmul_"


@dataclass
class Built:
    """The new nodes of a fusion, named after the node that they stand in for."""

    name: str
    nodes: list[Node] = field(default_factory=list)

    def append(self, node: Node) -> Entry:
        self.nodes.append(node)
        return local(len(self.nodes) - 1)

    def add(self, op: str, what: str, inputs: Sequence[Entry], **attrs: str) -> Entry:
        """Adds a node whose name ends in ``what``, with a number where that name is taken, and returns its output."""
        node = Node(op, f"{self.name}_{what}", tuple(inputs), attrs=attrs)
        taken = {other.name for other in self.nodes}
        number = 0
        while node.name in taken:
            number += 1
            node = node._with(name=f"{self.name}_{what}{number}")
        return self.append(node)


class Product(NamedTuple):
    """The product of queries and keys: in which form; in it, ``scale`` times, or divided by the root of the depth."""

    form: str
    inputs: tuple[Entry, ...]
    transposed: tuple[bool, bool]  # queries [N,D,T], keys [N,D,T]
    scale: float = 1.0
    root: bool = False
    heads: str = ""


class Result(NamedTuple):
    """The product of weights and values."""

    form: str
    weights: Entry
    values: Entry
    transposed: bool
    heads: str = ""


def _flags(node: Node) -> tuple[bool, bool]:
    return is_true(node.attrs, "transpose_a"), is_true(node.attrs, "transpose_b")


def _alpha(node: Node) -> float:
    return float(node.attrs.get("alpha", "1.0")) if node.op.endswith("gemm2") else 1.0


def _interleaved_form(node: Node, product: str) -> str:
    """The form of a product of interleaved heads, empty where it is none."""
    kind, _, what = node.op[len(_INTERLEAVED) :].partition("_")
    return INTERLEAVED.get(kind, "") if node.op.startswith(_INTERLEAVED) and what == product else ""


def is_weighing(view: View, number: int) -> bool:
    """Whether a node may be the product of weights and values."""
    node = view.graph.nodes[number]
    if _interleaved_form(node, "valatt"):
        return True
    plain = node.op in _BATCH_DOT or (node.op in _ANY_AXES and node.attrs.get("axis", "-2") == "-2")
    return plain and not _flags(node)[0] and _alpha(node) == 1


def result(view: View, number: int) -> Result:
    node = view.graph.nodes[number]
    form = _interleaved_form(node, "valatt")
    if form:
        return Result(form, node.inputs[1], node.inputs[0], False, node.attrs["heads"])
    return Result(BATCHED if node.op in _BATCH_DOT else SEVERAL, node.inputs[0], node.inputs[1], _flags(node)[1])


def product(view: View, entry: Entry) -> Product | None:
    """Returns the product of queries and keys that computes an entry."""
    node = view.node(entry)
    if entry.index != 0:
        return None
    form = _interleaved_form(node, "qk")
    if form:
        return Product(form, node.inputs, (False, False), root=True, heads=node.attrs["heads"])
    if node.op in _BATCH_DOT or (node.op in _ANY_AXES and node.attrs.get("axis", "-2") == "-2"):
        first, second = _flags(node)
        return Product(BATCHED if node.op in _BATCH_DOT else SEVERAL, node.inputs, (first, not second), _alpha(node))
    return None


class Operands(NamedTuple):
    """Queries, keys and values as kernels read them, [N,T,D], and the shapes that the user's entries must have."""

    q: Entry
    k: Entry
    v: Entry
    shapes: Mapping[Entry, str]
    interleaved: str = ""
    like: Entry | None = None

    @staticmethod
    def of(view: View, built: Built, weighted: Result, scores: Product) -> Operands:
        if scores.heads:
            return _interleaved(built, scores)
        shapes: dict[Entry, str] = {}
        lead = "N" if scores.form == BATCHED else "b,h"
        taken = []
        for entry, axes, transposed in zip(
            (*scores.inputs, weighted.values), ("T,D", "S,D", "S,V"), (*scores.transposed, weighted.transposed)
        ):
            if transposed and (behind := _turned(view, entry)) is not None:
                entry, transposed = behind, False
            there = ",".join(reversed(axes.split(","))) if transposed else axes
            shapes[entry] = f"{lead},{there}"
            like = entry
            if scores.form == SEVERAL:
                entry = built.add("Reshape", "heads", (entry,), shape="(-3,0,0)")
            if transposed:
                entry = built.add("transpose", "turned", (entry,), axes="(0,2,1)")
            taken.append((entry, like))
        (q, first), (k, _), (v, _) = taken
        return Operands(q, k, v, shapes, like=first if scores.form == SEVERAL else None)

    def finished(self, built: Built, out: Entry) -> Entry:
        """Returns the product's entry in the shape that the user's graph has for it."""
        if self.interleaved:
            turned = built.add("transpose", "back", (out,), axes="(1,0,2)")
            split = built.add("Reshape", "batches", (turned,), shape=f"(0,-4,-1,{self.interleaved},0)")
            return built.add("Reshape", "joined", (split,), shape="(0,0,-3)")
        if self.like is not None:
            like = built.add("BlockGrad", "like", (self.like,))
            return built.add(
                "reshape_like", "split", (out, like), lhs_begin="0", lhs_end="1", rhs_begin="0", rhs_end="2"
            )
        return out


def _turned(view: View, entry: Entry) -> Entry | None:
    """The array [N,T,D] of which this is the transpose [N,D,T]."""
    node = view.node(entry)
    if node.op == "transpose" and node.attrs.get("axes", "").replace(" ", "") in ("(0,2,1)", "[0,2,1]"):
        return node.inputs[0]
    if node.op == "SwapAxis" and {node.attrs.get("dim1", "0"), node.attrs.get("dim2", "0")} == {"1", "2"}:
        return node.inputs[0]
    return None


def _interleaved(built: Built, scores: Product) -> Operands:
    """Parts of [T,B,heads * parts * D], where those of one head lie side by side."""
    heads = scores.heads

    def parts(entry: Entry, what: str, count: int) -> list[Entry]:
        """The parts as [N,T,D]; cut along the first axis, which takes a twentieth of the time of the last one."""
        split = built.add("Reshape", f"{what}_heads", (entry,), shape=f"(0,0,{heads},-1)")
        joined = built.add("Reshape", what, (split,), shape="(0,-3,0)")
        if count == 1:
            return [built.add("transpose", f"{what}_turned", (joined,), axes="(1,0,2)")]
        apart = built.add("Reshape", f"{what}_apart", (joined,), shape=f"(0,0,-4,{count},-1)")
        turned = built.add("transpose", f"{what}_turned", (apart,), axes="(2,1,0,3)")
        cut = built.add("SliceChannel", f"{what}_parts", (turned,), **split_attrs(0, count))
        return [Entry(cut.node, number) for number in range(count)]

    if len(scores.inputs) == 1:
        q, k, v = parts(scores.inputs[0], "qkv", 3)
        shapes = {scores.inputs[0]: "T,B,E"}
    else:
        (q,) = parts(scores.inputs[0], "q", 1)
        k, v = parts(scores.inputs[1], "kv", 2)
        shapes = {scores.inputs[0]: "T,B,E", scores.inputs[1]: "S,B,2E"}
    return Operands(q, k, v, shapes, interleaved=heads)
