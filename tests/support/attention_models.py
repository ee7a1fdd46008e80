"""Small symbols with dot attention in the forms in which models have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping

import mxnet as mx

BATCH, HEADS, QUERIES, KEYS, DEPTH = 3, 4, 34, 91, 9
Symbol = mx.sym.Symbol
DATA, LENGTHS = mx.sym.var("data"), mx.sym.var("lengths")  # each once in a symbol


@dataclass(frozen=True)
class Example:
    """A symbol, the shapes of its inputs, and how often each pattern is found in it.

    ``integers``: inputs that are indices below a number. ``fuse`` is the option: with "memory" alone, some are fused.
    """

    symbol: mx.sym.Symbol
    shapes: Mapping[str, tuple[int, ...]]
    found: Mapping[str, int]
    integers: Mapping[str, int]
    fuse: bool | str = True


def dot(q: Symbol, k: Symbol) -> Symbol:
    return mx.sym.batch_dot(q, k, transpose_b=True)


def dropped(x: Symbol) -> Symbol:
    return mx.sym.Dropout(x, p=0.3)


def heads_of(x: Symbol) -> Symbol:
    """(batch, steps, heads * depth) as (batch * heads, steps, depth)."""
    parts = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))
    return mx.sym.reshape(parts, shape=(-1, 0, 0), reverse=True)


def axes_of(x: Symbol) -> Symbol:
    """(batch, steps, heads * depth) as (batch, heads, steps, depth)."""
    return mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))


def parts_of(split: Callable[[Symbol], Symbol] = heads_of) -> list[Symbol]:
    """Queries, keys and values of one array."""
    x = DATA
    dense = (
        mx.sym.FullyConnected(x, num_hidden=HEADS * DEPTH, flatten=False, no_bias=True, name=name) for name in "qkv"
    )
    return [split(each) for each in dense]


def keys_inside(shape: tuple[int, ...]) -> Symbol:
    """1 for the keys up to a length of each batch, else 0; (batch, ..., keys) of this shape of lengths."""
    steps = mx.sym.contrib.arange_like(DATA, axis=1)
    ones = (1,) * (len(shape) - 1)
    return mx.sym.broadcast_lesser(mx.sym.reshape(steps, shape=(*ones, -1)), mx.sym.reshape(LENGTHS, shape=shape))


def to_heads(mask: Symbol) -> Symbol:
    """(batch, queries, keys) for each head, as GluonNLP repeats it."""
    wide = mx.sym.broadcast_axis(mx.sym.expand_dims(mask, axis=1), axis=1, size=HEADS)
    return mx.sym.reshape(wide, shape=(-1, 0, 0), reverse=True)


def example(symbol: Symbol, lengths: int = 0, found: int = 1, **more: tuple[int, ...]) -> Example:
    shapes = {"data": (BATCH, KEYS, HEADS * DEPTH), **more}
    if lengths:
        shapes["lengths"] = (BATCH,)
    return Example(symbol, shapes, {"attention": found}, {"lengths": lengths} if lengths else {})


def plain(masked: bool = False, biased: bool = False) -> Example:
    """As Sockeye's Transformer has it."""
    q, k, v = (mx.sym.var(name) for name in "qkv")
    scores = dot(q * 0.5, k)
    shapes = {"q": (BATCH, QUERIES, 4), "k": (BATCH, KEYS, 4), "v": (BATCH, KEYS, 5)}
    heads = []  # what else reads the lengths and the bias, and comes first
    if masked:
        heads.append(mx.sym.BlockGrad(mx.sym.var("lengths")))
        turned = mx.sym.transpose(scores, axes=(2, 0, 1))
        masked_scores = mx.sym.SequenceMask(turned, heads[0], use_sequence_length=True, value=-1e8)
        scores = mx.sym.transpose(masked_scores, axes=(1, 2, 0))
        shapes["lengths"] = (BATCH,)
    if biased:
        heads.append(mx.sym.BlockGrad(mx.sym.var("bias")))
        scores = mx.sym.broadcast_add(scores, heads[-1])
        shapes["bias"] = (1, QUERIES, KEYS)
    result = mx.sym.batch_dot(mx.sym.softmax(scores, axis=-1), v)
    return Example(mx.sym.Group([*heads, result]), shapes, {"attention": 1}, {"lengths": KEYS} if masked else {})


def _dropped(**options: Any) -> Example:
    q, k, v = parts_of()
    weights = mx.sym.Dropout(mx.sym.softmax(dot(q, k) / 3), **options)
    return example(mx.sym.Dropout(mx.sym.batch_dot(weights, v), p=0.2))


def _twice() -> Example:
    """Two layers on the same array, with Dropout between them: random numbers come in their order."""
    q, k, v = parts_of()
    first = mx.sym.batch_dot(dropped(mx.sym.softmax(dot(q, k))), v)
    second = mx.sym.batch_dot(dropped(mx.sym.softmax(dot(dropped(first), k) * 0.3)), v)
    return replace(example(mx.sym.Group([dropped(second), first])), found={"attention": 2, "dropout": 2})


def _of_several_axes(added: Symbol, lengths: int = 0, **more: tuple[int, ...]) -> Example:
    """As BERT: the mask is added to scores (batch, heads, queries, keys)."""
    q, k, v = parts_of()
    scores = mx.sym.broadcast_add(mx.sym.reshape(dot(q, k) / 3, shape=(-4, -1, HEADS, 0, 0)), added)
    weights = mx.sym.reshape(dropped(mx.sym.softmax(scores, axis=-1)), shape=(-3, 0, 0))
    return example(mx.sym.batch_dot(weights, v), lengths, **more)


def _selected(fill: float, multiplied: bool = True) -> Example:
    """As GluonNLP's masked softmax."""
    q, k, v = parts_of()
    mask = to_heads(mx.sym.broadcast_axis(keys_inside((-1, 1, 1)), axis=1, size=KEYS))
    scores = dot(q, k) * 0.3
    weights = mx.sym.softmax(mx.sym.where(mask, scores, fill * mx.sym.ones_like(scores)), axis=-1)
    weights = weights * mask if multiplied else weights
    return example(mx.sym.batch_dot(dropped(weights), v), KEYS)


def _added(repeat: Callable[[Symbol], Symbol], shape: tuple[int, ...]) -> Example:
    q, k, v = parts_of()
    scores = mx.sym.broadcast_add(dot(q, k), repeat(mx.sym.BlockGrad(mx.sym.var("mask"))))
    return example(mx.sym.batch_dot(dropped(mx.sym.softmax(scores)), v), mask=shape)


def _with_lengths() -> Example:
    """As BERT in GluonNLP 0.10 bounds the keys of each query."""
    q, k, v = parts_of()
    steps = mx.sym.zeros_like(mx.sym.contrib.arange_like(DATA, axis=1))
    lengths = mx.sym.broadcast_add(mx.sym.reshape(LENGTHS, shape=(-1, 1)), mx.sym.reshape(steps, shape=(1, -1)))
    wide = mx.sym.broadcast_axis(mx.sym.expand_dims(mx.sym.cast(lengths, "int32"), axis=1), axis=1, size=HEADS)
    wide = mx.sym.reshape(wide, shape=(-1, 0), reverse=True)
    weights = mx.sym.softmax(dot(q, k), length=wide, use_length=True, axis=-1)
    return example(mx.sym.batch_dot(dropped(weights), v), KEYS + 1)


def _interleaved() -> Example:
    x = mx.sym.FullyConnected(DATA, num_hidden=3 * HEADS * DEPTH, flatten=False, name="qkv")
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(x, heads=HEADS)
    weights = dropped(mx.sym.softmax(scores, axis=-1))
    return example(mx.sym.contrib.interleaved_matmul_selfatt_valatt(x, weights, heads=HEADS))


def _interleaved_of_others() -> Example:
    """A decoder's attention to an encoder's states."""
    x = DATA
    q = mx.sym.FullyConnected(x, num_hidden=HEADS * DEPTH, flatten=False, name="q")
    kv = mx.sym.FullyConnected(x, num_hidden=2 * HEADS * DEPTH, flatten=False, name="kv")
    early = mx.sym.mean(kv, axis=0)  # the encoder comes first
    scores = mx.sym.contrib.interleaved_matmul_encdec_qk(q, kv, heads=HEADS)
    attended = mx.sym.contrib.interleaved_matmul_encdec_valatt(kv, dropped(mx.sym.softmax(scores)), heads=HEADS)
    return example(mx.sym.Group([early, attended]))


def _products(masked: bool) -> Example:
    q, k, v = parts_of(axes_of)
    scores = mx.sym.linalg.gemm2(q, k, transpose_b=True, alpha=0.4)
    if masked:
        scores = mx.sym.broadcast_add(scores, mx.sym.BlockGrad(mx.sym.var("mask")))
    symbol = mx.sym.linalg.gemm2(dropped(mx.sym.softmax(scores)), v)
    return example(symbol, **({"mask": (BATCH, 1, 1, KEYS)} if masked else {}))


def _numpy() -> Example:
    """As mx.np has products of several axes."""
    q, k, v = parts_of(axes_of)

    def multiply(one: Symbol, other: Symbol) -> Symbol:
        return mx.sym.np.matmul(one.as_np_ndarray(), other.as_np_ndarray()).as_nd_ndarray()

    scores = multiply(q, mx.sym.transpose(k, axes=(0, 1, 3, 2))) * 0.4
    return example(multiply(dropped(mx.sym.softmax(scores, axis=-1)), v))


def _summed(scores: str, products: str, *axes: tuple[int, ...], optimize: bool = False) -> Example:
    """As einsums of arrays [batch, heads, steps, depth] with their axes in other orders, or of [N, steps, depth]."""
    q, k, v = (part.as_np_ndarray() for part in (parts_of(axes_of) if axes else parts_of()))
    if axes:
        q, k, v = (mx.sym.np.transpose(part, order) for part, order in zip((q, k, v), axes))
    dots = mx.sym.np.einsum(scores, q, k, optimize=optimize).as_nd_ndarray() * 0.4
    weights = dropped(mx.sym.softmax(dots, axis=-1)).as_np_ndarray()
    operands = (v, weights) if products.startswith("v") else (weights, v)
    return example(mx.sym.np.einsum(products.lstrip("v"), *operands, optimize=optimize).as_nd_ndarray())


def _turned() -> Example:
    """Operands that are transposed in front of the products, or within them."""
    q, k, v = parts_of()
    turned = [mx.sym.relu(mx.sym.transpose(x, axes=(0, 2, 1))) for x in (q, v)]
    scores = mx.sym.batch_dot(turned[0], mx.sym.transpose(k, axes=(0, 2, 1)), transpose_a=True)
    return example(mx.sym.batch_dot(mx.sym.softmax(scores, temperature=2.5), turned[1], transpose_b=True))


ATTENTIONS: Mapping[str, Callable[[], Example]] = {
    "dot attention": plain,
    "dot attention with a mask": lambda: plain(masked=True),
    "dot attention with a bias": lambda: plain(biased=True),
}
FORMS: Mapping[str, Callable[[], Example]] = {
    "dropped attention": lambda: _dropped(p=0.3),
    "dropped attention, always": lambda: _dropped(p=0.4, mode="always"),
    "dropped attention, of nothing": lambda: _dropped(p=0),
    "dropped attention, twice": _twice,
    "attention to a length": lambda: _of_several_axes((1 - keys_inside((-1, 1, 1, 1))) * -1e9, KEYS),
    "attention of heads with masks": lambda: _of_several_axes(
        mx.sym.BlockGrad(mx.sym.var("mask")), mask=(1, HEADS, KEYS, KEYS)
    ),
    "attention with two masks": lambda: _of_several_axes(
        mx.sym.broadcast_add(mx.sym.BlockGrad(mx.sym.var("mask")), (1 - keys_inside((-1, 1, 1, 1))) * -1e9), KEYS,
        mask=(1, 1, KEYS, KEYS),
    ),
    "selected attention": lambda: _selected(-1e18),
    "selected attention, as with mixed types": lambda: _selected(-1e4),
    "selected attention, not multiplied": lambda: _selected(-1e9, False),
    "selected attention, by infinity": lambda: _selected(float("-inf"), False),
    "attention with repeated masks": lambda: _added(
        lambda mask: mx.sym.repeat(mask, repeats=HEADS, axis=0), (BATCH, KEYS, KEYS)
    ),
    "attention with tiled masks": lambda: _added(
        lambda mask: mx.sym.tile(mask, reps=(BATCH, 1, 1)), (HEADS, KEYS, KEYS)
    ),
    "attention with masks of heads": lambda: _added(to_heads, (BATCH, KEYS, KEYS)),
    "attention with masks of keys": lambda: _added(lambda mask: mask, (BATCH * HEADS, 1, KEYS)),
    "attention with lengths": _with_lengths,
    "interleaved attention": _interleaved,
    "interleaved attention to others": _interleaved_of_others,
    "attention by products of several axes": lambda: _products(masked=False),
    "attention by products of several axes, masked": lambda: _products(masked=True),
    "attention by products of mx.np": _numpy,
    "attention by einsum": lambda: _summed("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", *[(0, 2, 1, 3)] * 3),
    "attention by einsum, heads first": lambda: _summed(
        "bhid, bhjd -> bhij", "vbhjd, bhij -> bhid", *[(0, 1, 2, 3)] * 3
    ),
    "attention by einsum, keys turned": lambda: _summed(
        "hbqd,hbdk->bhqk", "bhqk,bkhd->bhqd", (1, 0, 2, 3), (1, 0, 3, 2), (0, 2, 1, 3)
    ),
    "attention by einsum of batches": lambda: _summed("nqd,nkd->nqk", "nqk,nkd->qnd", optimize=True),
    "attention by transposes": _turned,
}  # fmt: skip
