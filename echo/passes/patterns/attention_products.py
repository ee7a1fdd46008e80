"""The products of dot attention, in each form that MXNet has for them, einsums included."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, Mapping, NamedTuple, Sequence

from echo.ir.graph import Entry, Node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import MUL, View, local, split_attrs

# The two products of dot attention in the forms in which models have them, and their operands as kernels read them.

BATCHED, SEVERAL = "batches", "batches of several axes"
INTERLEAVED = {"selfatt": "interleaved heads", "encdec": "interleaved heads of two arrays"}
LEADING = "..."
_BATCH_DOT = ("batch_dot", "_npx_batch_dot")
_ANY_AXES = ("_linalg_gemm2", "linalg_gemm2", "_npi_matmul")
_INTERLEAVED = "_contrib_interleaved_matmul_"
EINSUM = "_npi_einsum"
# Operators that may be a product of weights and values.
PRODUCTS = frozenset({*_BATCH_DOT, *_ANY_AXES, EINSUM, *(f"{_INTERLEAVED}{kind}_valatt" for kind in INTERLEAVED)})
# On the way from the softmax to the values.
_ENDS_OF_WEIGHTS = frozenset({"softmax", "Dropout", "_copy", "Reshape", "reshape", *MUL})


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


class AttentionProduct(NamedTuple):
    """The product of queries and keys: in which form; in it, ``scale`` times, or divided by the root of the depth.

    ``axes`` are those of queries and keys, named as for einsums (below).
    """

    form: str
    inputs: tuple[Entry, ...]
    axes: tuple[str, ...] = ()
    scale: float = 1.0
    root: bool = False
    heads: str = ""


class Result(NamedTuple):
    """The product of weights and values: the axes of the values and of the result."""

    form: str
    weights: Entry
    values: Entry
    axes: tuple[str, ...] = ()
    heads: str = ""


def _flags(node: Node) -> tuple[bool, bool]:
    return is_true(node.attrs, "transpose_a"), is_true(node.attrs, "transpose_b")


def _alpha(node: Node) -> float:
    return float(node.attrs.get("alpha", "1.0")) if node.op.endswith("gemm2") else 1.0


def _interleaved_form(node: Node, product: str) -> str:
    """The form of a product of interleaved heads, empty where it is none."""
    kind, _, what = node.op[len(_INTERLEAVED) :].partition("_")
    return INTERLEAVED.get(kind, "") if node.op.startswith(_INTERLEAVED) and what == product else ""


def result(view: View, number: int) -> Result | None:
    """The product of weights and values that a node may be."""
    node = view.graph.nodes[number]
    form = _interleaved_form(node, "valatt")
    if form:
        return Result(form, node.inputs[1], node.inputs[0], heads=node.attrs["heads"])
    if _is_plain(node):
        form, lead = _form_of(node)
        first, second = _flags(node)
        axes = lead + ("VS" if second else "SV"), lead + "TV"
        return None if first or _alpha(node) != 1 else Result(form, node.inputs[0], node.inputs[1], axes)
    return next((way for way in weighings(node) if view.node(way.weights).op in _ENDS_OF_WEIGHTS), None)


def _is_plain(node: Node) -> bool:
    """Whether a node is a product of two arrays with equal leading axes."""
    return node.op in _BATCH_DOT or (node.op in _ANY_AXES and node.attrs.get("axis", "-2") == "-2")


def _form_of(node: Node) -> tuple[str, str]:
    """The form of a plain product, and the names of its leading axes."""
    return (BATCHED, "N") if node.op in _BATCH_DOT else (SEVERAL, "bh")


def _of_axes(axes: str) -> str:
    return BATCHED if "N" in axes else SEVERAL


def product(view: View, entry: Entry) -> AttentionProduct | None:
    """Returns the product of queries and keys that computes an entry."""
    node = view.node(entry)
    if entry.index != 0:
        return None
    form = _interleaved_form(node, "qk")
    if form:
        return AttentionProduct(form, node.inputs, root=True, heads=node.attrs["heads"])
    if _is_plain(node):
        form, lead = _form_of(node)
        first, second = _flags(node)
        axes = lead + ("DT" if first else "TD"), lead + ("SD" if second else "DS")
        return AttentionProduct(form, node.inputs, axes, _alpha(node))
    return scoring(node)


class Operands(NamedTuple):
    """Queries, keys and values as kernels read them, [N,T,D], and the shapes that the user's entries must have."""

    q: Entry
    k: Entry
    v: Entry
    shapes: Mapping[Entry, str]
    interleaved: str = ""
    like: Entry | None = None
    axes: str = ""  # of the product, where the original graph has others than kernels

    @staticmethod
    def of(view: View, built: Built, weighted: Result, scores: AttentionProduct) -> Operands:
        if scores.heads:
            return _interleaved(built, scores)
        shapes: dict[Entry, str] = {}
        lead = "N" if scores.form == BATCHED else "bh"
        taken = []
        axes_of = (*scores.axes, weighted.axes[0])
        for entry, axes, wanted in zip((*scores.inputs, weighted.values), axes_of, ("TD", "SD", "SV")):
            if axes == "N" + wanted[::-1] and (turned := _turned(view, entry)) is not None:
                entry, axes = turned, "N" + wanted
            shapes[entry] = ",".join(axes)
            if not axes.startswith(lead):
                entry, axes = _with_axes(built, entry, axes, lead + wanted), lead + wanted
            like = entry
            if scores.form == SEVERAL:
                entry = built.add("Reshape", "heads", (entry,), shape="(-3,0,0)")
            entry = _with_axes(built, entry, axes[len(lead) - 1 :], (lead + wanted)[len(lead) - 1 :])
            taken.append((entry, like))
        (q, first), (k, _), (v, _) = taken
        back = "" if weighted.axes[1] == lead + "TV" else weighted.axes[1]
        return Operands(q, k, v, shapes, like=first if scores.form == SEVERAL else None, axes=back)

    def finished(self, built: Built, out: Entry) -> Entry:
        """Returns the product's entry in the shape that the original graph has for it."""
        if self.interleaved:
            turned = built.add("transpose", "back", (out,), axes="(1,0,2)")
            split = built.add("Reshape", "batches", (turned,), shape=f"(0,-4,-1,{self.interleaved},0)")
            return built.add("Reshape", "joined", (split,), shape="(0,0,-3)")
        if self.like is not None:
            like = built.add("BlockGrad", "like", (self.like,))
            out = built.add(
                "reshape_like", "split", (out, like), lhs_begin="0", lhs_end="1", rhs_begin="0", rhs_end="2"
            )
        return _with_axes(built, out, "NTV" if self.like is None else "bhTV", self.axes) if self.axes else out


def _with_axes(built: Built, entry: Entry, axes: str, wanted: str) -> Entry:
    if axes == wanted:
        return entry
    return built.add("transpose", "turned", (entry,), axes=f"({','.join(str(axes.index(axis)) for axis in wanted)})")


def _turned(view: View, entry: Entry) -> Entry | None:
    """The array [N,T,D] of which this is the transpose [N,D,T]."""
    node = view.node(entry)
    if node.op == "transpose" and node.attrs.get("axes", "").replace(" ", "") in ("(0,2,1)", "[0,2,1]"):
        return node.inputs[0]
    if node.op == "SwapAxis" and {node.attrs.get("dim1", "0"), node.attrs.get("dim2", "0")} == {"1", "2"}:
        return node.inputs[0]
    return None


def _interleaved(built: Built, scores: AttentionProduct) -> Operands:
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


# The two products of dot attention as einsums: which of their letters are batches, heads, queries, keys and depths.
#
# Axes have these names: N, or b and h where the batch has two axes; T of queries, S of keys, D of the depth of
# queries and keys, V of the depth of values.

_BATCHES = {1: "N", 2: "bh"}  # the names of the batch's axes, by their number


def scoring(node: Node) -> AttentionProduct | None:
    """The product of queries and keys that an einsum may be, None where it cannot.

    Its result is [batches, queries, keys], as softmax over the last axis reads it.
    """
    terms = _terms(node)
    if terms is None:
        return None
    *inputs, out = terms
    names = _named(out, "TS")
    if names is None:
        return None
    queries = 0 if out[-2] in inputs[0] else 1
    summed = (set(inputs[0]) & set(inputs[1])) - set(out)
    if len(summed) != 1:
        return None
    names[summed.pop()] = "D"
    axes = [_renamed(inputs[at], names) for at in (queries, 1 - queries)]
    batch = _BATCHES[len(out) - 2]
    if [sorted(text) for text in axes] != [sorted(batch + "TD"), sorted(batch + "SD")]:
        return None
    return AttentionProduct(_of_axes(axes[0]), (node.inputs[queries], node.inputs[1 - queries]), tuple(axes))


def weighings(node: Node) -> Iterator[Result]:
    """The ways in which an einsum may be the product of weights [batches, queries, keys] and values."""
    terms = _terms(node)
    if terms is None:
        return
    *inputs, out = terms
    for weights in (0, 1):
        values = inputs[1 - weights]
        names = _named(inputs[weights], "TS")
        own = set(values) - set(inputs[weights])
        if names is None or len(own) != 1:
            continue
        names[own.pop()] = "V"
        batch = _BATCHES[len(inputs[weights]) - 2]
        axes = [_renamed(text, names) for text in (values, out)]
        if [sorted(text) for text in axes] == [sorted(batch + "SV"), sorted(batch + "TV")]:
            yield Result(_of_axes(axes[1]), node.inputs[weights], node.inputs[1 - weights], tuple(axes))


def _terms(node: Node) -> tuple[str, str, str] | None:
    """The letters of both inputs and of the result; None of an einsum that is written or works in another way."""
    text = node.attrs.get("subscripts", "").replace(" ", "")
    inputs, arrow, out = text.partition("->")
    terms = [*inputs.split(","), out]
    if node.op != EINSUM or not arrow or len(terms) != 3:
        return None
    plain = all(term.isalpha() and len(set(term)) == len(term) for term in terms)
    return (terms[0], terms[1], terms[2]) if plain else None


def _named(term: str, last: str) -> dict[str, str] | None:
    """Names for the letters of a term: of the batch's axes, and of the ``last`` ones; None where they are too many."""
    batch = _BATCHES.get(len(term) - len(last))
    return None if batch is None else dict(zip(term, batch + last))


def _renamed(term: str, names: dict[str, str]) -> str:
    return "".join(names.get(letter, "?") for letter in term)
