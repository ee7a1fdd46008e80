"""Scores of dot attention: a product of queries and keys that is scaled, masked and shaped on its way to softmax."""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple, Sequence

from echo.ir.graph import Entry, Node
from echo.ir.op_spec import is_true
from echo.passes.patterns.attention_products import LEADING, SEVERAL, AttentionProduct, Built, product
from echo.passes.patterns.graph_view import View, pairs

_ADD = frozenset({"broadcast_add", "elemwise_add", "_npi_add"})
_WHERE = frozenset({"where", "_npi_where"})
_SCALARS = {"_mul_scalar": 1, "_npi_multiply_scalar": 1, "_div_scalar": -1, "_npi_true_divide_scalar": -1}
_LEAST_MASK = -1e7  # softmax makes zeros of masked scores of this value or less


class Mask(NamedTuple):
    """A mask: what the user applies, the entry [G,R,S] or [B,H,R,S] that it repeats, and how scores get it.

    ``axis`` is where another axis has to go in, -1 for nowhere. It is added where ``fill`` is None; else it selects
    scores, and puts ``fill`` instead of the others.
    """

    user: Entry
    source: Entry
    axis: int
    shapes: Mapping[Entry, str]
    fill: float | None = None
    multiplies: bool = False


class Scores(NamedTuple):
    """``lengths`` are numbers of keys, of each query with ``row_lengths``; ``shapes`` those of the user's entries."""

    product: AttentionProduct
    scale: float
    masks: tuple[Mask, ...]
    lengths: Entry | None
    row_lengths: bool
    nodes: frozenset[int]
    shapes: Mapping[Entry, str]

    @property
    def form(self) -> str:
        return self.product.form


class _ScoreStep(NamedTuple):
    """A node between the product and softmax: the scores below it, and what it does to them."""

    below: Entry
    nodes: frozenset[int]
    factor: float = 1.0
    mask: tuple[Entry, float | None] | None = None
    lengths: Entry | None = None
    shapes: bool = False


def match(view: View, entry: Entry, lengths: Entry | None) -> Scores | str | None:
    """The scores that a softmax reads, with ``lengths`` of its own."""
    steps: list[_ScoreStep] = []
    top = entry
    while True:
        qk = product(view, entry)
        if qk is not None:
            break
        step = _step(view, entry)
        if step is None or isinstance(step, str):
            return step
        steps.append(step)
        entry = step.below
    return _collected(view, qk, entry, top, steps, lengths)


def _collected(
    view: View, qk: AttentionProduct, entry: Entry, top: Entry, steps: Sequence[_ScoreStep], lengths: Entry | None
) -> Scores | str:
    """Collects the steps between the product and the softmax, from the product on, into its scores."""
    scores = Scores(qk, qk.scale, (), lengths, lengths is not None, frozenset({entry.node}), {})
    shapes: dict[Entry, str] = {entry: f"{LEADING}T,S", top: f"{LEADING}T,S"}
    several = qk.form == SEVERAL
    for step in reversed(steps):
        if step.shapes:
            several = not several
            shapes[step.below] = f"{LEADING}T,S"
        taken = _with_step(view, scores, step, several)
        if isinstance(taken, str):
            return taken
        scores = taken
        if step.mask is not None:  # all masks split the first axis alike
            shapes[step.below] = "b,h,T,S" if several else "N,T,S"
    if scores.masks and scores.lengths is not None and not scores.row_lengths:
        return "attention with a mask and a bias: MXNet adds them up, and loses the bias where all keys are ruled out"
    if len(scores.masks) > 1 and any(mask.fill is not None for mask in scores.masks):
        return "attention with several masks, of which one selects scores"
    if len(scores.masks) > 1 and any(mask.axis == 0 for mask in scores.masks):
        return "attention with several masks, of which one is tiled"
    if scores.lengths is not None:
        shapes[scores.lengths] = ("#b,h,T" if several else "#N,T") if scores.row_lengths else "N"
    for mask in scores.masks:
        shapes.update(mask.shapes)
    return scores._replace(shapes=shapes)


def _with_step(view: View, scores: Scores, step: _ScoreStep, several: bool) -> Scores | str:
    """Scores after one more step; ``several``: they have several axes there."""
    scores = scores._replace(nodes=scores.nodes | step.nodes)
    if step.factor != 1:
        if scores.masks or (scores.lengths is not None and not scores.row_lengths):
            return "attention with a mask that is scaled"
        scores = scores._replace(scale=scores.scale * step.factor)
    if step.lengths is not None:
        if scores.lengths is not None or several:
            return "attention with lengths twice, or for scores of several axes"
        scores = scores._replace(lengths=step.lengths)
    if step.mask is not None:
        mask = _mask(view, *step.mask, several)
        if mask.fill is None and not view.is_constant(mask.user):
            return "attention with a bias that is trained"
        scores = scores._replace(masks=(*scores.masks, mask))
    return scores


def _step(view: View, entry: Entry) -> _ScoreStep | str | None:
    node = view.node(entry)
    nodes = frozenset({entry.node})
    if entry.index != 0:
        return None
    if node.op in _SCALARS:
        factor = _factor(node)
        return (
            "attention whose scores are divided by 0" if factor is None else _ScoreStep(node.inputs[0], nodes, factor)
        )
    if node.op in ("Reshape", "reshape"):
        return _ScoreStep(node.inputs[0], nodes, shapes=True)
    if node.op == "transpose":
        return _ruled(view, entry)
    return _masked(view, entry)


def _factor(node: Node) -> float | None:
    """Returns the factor that a product or quotient with a scalar stands for; None for a division by 0."""
    scalar = float(node.attrs["scalar"])
    if _SCALARS[node.op] > 0:
        return scalar
    return 1 / scalar if scalar != 0 else None


def _masked(view: View, entry: Entry) -> _ScoreStep | str | None:
    """The step of a mask that is added, or that selects scores."""
    node, nodes = view.node(entry), frozenset({entry.node})
    if node.op in _ADD:
        masks = (pair for pair in pairs(node.inputs) if _leads_to_product(view, pair[0]))
        return next((_ScoreStep(inner, nodes, mask=(mask, None)) for inner, mask in masks), None)
    if node.op in _WHERE and _leads_to_product(view, node.inputs[1]):
        fill = _filled(view, node.inputs[2])
        if fill is None:
            return "attention whose scores are selected from arrays"
        return _ScoreStep(node.inputs[1], nodes | fill[1], mask=(node.inputs[0], fill[0]))
    return None


def _leads_to_product(view: View, entry: Entry) -> bool:
    """Whether an entry is made of a product of queries and keys."""
    while product(view, entry) is None:
        step = _step(view, entry)
        if not isinstance(step, _ScoreStep):
            return isinstance(step, str)
        entry = step.below
    return True


def _filled(view: View, entry: Entry) -> tuple[float, frozenset[int]] | None:
    """The one number that an array holds, and the nodes that make it of another array."""
    node, nodes = view.node(entry), frozenset({entry.node})
    if node.op in _SCALARS or node.op in ("_plus_scalar", "_npi_add_scalar"):
        inner = _filled(view, node.inputs[0])
        if inner is None:
            return None
        if node.op not in _SCALARS:
            return inner[0] + float(node.attrs["scalar"]), nodes | inner[1]
        factor = _factor(node)
        return None if factor is None else (inner[0] * factor, nodes | inner[1])
    if node.op in ("ones_like", "zeros_like"):
        return float(node.op == "ones_like"), nodes
    if node.op in ("full_like", "_npi_full_like"):
        return float(node.attrs.get("fill_value", "0")), nodes
    return None


def _ruled(view: View, entry: Entry) -> _ScoreStep | str | None:
    """A mask of the keys beyond each length, which is applied between two transposes."""
    back = view.inputs(entry, ("transpose",))
    mask = view.node(back[0]) if back is not None else None
    if back is None or mask is None or mask.op != "SequenceMask" or not is_true(mask.attrs, "use_sequence_length"):
        return None
    forth = view.inputs(mask.inputs[0], ("transpose",))
    axes = [_axes(view.node(entry).attrs), _axes(view.node(mask.inputs[0]).attrs)]
    if forth is None or axes != [(1, 2, 0), (2, 0, 1)] or mask.attrs.get("axis", "0") != "0":
        return "attention with a mask along another axis than that of the keys"
    value = float(mask.attrs.get("value", "0"))
    if value > _LEAST_MASK:
        return "attention whose mask does not rule keys out"
    if value == -math.inf:
        return "attention whose mask is -inf: MXNet makes NaN where it rules all keys out"
    return _ScoreStep(forth[0], frozenset({entry.node, back[0].node, mask.inputs[0].node}), lengths=mask.inputs[1])


def _axes(attrs: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in attrs.get("axes", "").strip("()[] ").split(",") if axis.strip())


def _mask(view: View, entry: Entry, fill: float | None, several: bool) -> Mask:
    """Returns a mask with the array after it, which the original graph may repeat for heads or queries."""
    if several:
        source = _narrow(view, entry)
        return Mask(entry, source, -1, {source: "b?,h?,T?,S"}, fill)
    node, four = view.node(entry), "b?,h?,T?,S"
    if node.op in ("Reshape", "reshape"):
        wide = view.node(node.inputs[0])
        if wide.op in ("broadcast_axis", "broadcast_axes", "broadcast_to", "broadcast_like"):
            source = wide.inputs[0]
            return Mask(entry, source, -1, {source: four, node.inputs[0]: "b,h,T?,S", entry: "N,T?,S"}, fill)
    if node.op == "repeat" and node.attrs.get("axis", "") == "0":
        source = node.inputs[0]
        return Mask(entry, source, 1, {source: "b,T?,S", entry: "N,T?,S"}, fill)
    if node.op == "tile" and node.attrs.get("reps", "").replace(" ", "").strip("()[]").rstrip(",").endswith(",1,1"):
        source = node.inputs[0]
        return Mask(entry, source, 0, {source: "h,T?,S", entry: "N,T?,S"}, fill)
    source = _narrow(view, entry)
    return Mask(entry, source, 1, {source: "N?,T?,S"}, fill)


def _narrow(view: View, entry: Entry) -> Entry:
    """Returns the array, with axes of size 1, that is repeated into this entry."""
    while view.node(entry).op in ("broadcast_axis", "broadcast_axes", "broadcast_to", "broadcast_like"):
        entry = view.node(entry).inputs[0]
    return entry


def built_mask(built: Built, masks: Sequence[Mask]) -> Entry | None:
    """The mask [Gb,Gh,R,Tk] that the kernel reads."""
    total: Entry | None = None
    for mask in masks:
        entry = mask.source
        if mask.axis >= 0:
            entry = built.add("expand_dims", "mask", (entry,), axis=str(mask.axis))
        total = entry if total is None else built.add("broadcast_add", "masks", (total, entry))
    return total
