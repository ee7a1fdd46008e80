"""Transformers whose attention weights are dropped out, and attention alone: cases of `benchmarks.fusion`."""

from __future__ import annotations

import math

import mxnet as mx

from benchmarks.models import Model

DROPOUT, WORDS = 0.1, 30522


def _dense(x: mx.sym.Symbol, size: int, name: str) -> mx.sym.Symbol:
    return mx.sym.FullyConnected(x, num_hidden=size, flatten=False, name=name)


def _split(x: mx.sym.Symbol, heads: int) -> mx.sym.Symbol:
    """(batch, steps, units) as (batch * heads, steps, units / heads)."""
    parts = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3))
    return mx.sym.reshape(parts, shape=(-1, 0, 0), reverse=True)


def _joined(x: mx.sym.Symbol, heads: int) -> mx.sym.Symbol:
    parts = mx.sym.transpose(mx.sym.reshape(x, shape=(-4, -1, heads, 0, 0)), axes=(0, 2, 1, 3))
    return mx.sym.reshape(parts, shape=(0, 0, -3))


def weighed(q: mx.sym.Symbol, k: mx.sym.Symbol, v: mx.sym.Symbol, depth: int, mask: mx.sym.Symbol | None = None,
            heads: int = 1) -> mx.sym.Symbol:  # fmt: skip
    """The five operators of attention, with dropout, on arrays (batch * heads, steps, depth)."""
    scores = mx.sym.batch_dot(q, k, transpose_b=True) / math.sqrt(depth)
    if mask is not None:
        scores = mx.sym.broadcast_add(mx.sym.reshape(scores, shape=(-4, -1, heads, 0, 0)), mask)
    weights = mx.sym.Dropout(mx.sym.softmax(scores, axis=-1), p=DROPOUT)
    if mask is not None:
        weights = mx.sym.reshape(weights, shape=(-3, 0, 0))
    return mx.sym.batch_dot(weights, v)


def _attended(x: mx.sym.Symbol, units: int, heads: int, mask: mx.sym.Symbol | None, name: str) -> mx.sym.Symbol:
    q, k, v = (_split(_dense(x, units, f"{name}_{part}"), heads) for part in "qkv")
    return _joined(weighed(q, k, v, units // heads, mask, heads), heads)


def _interleaved(x: mx.sym.Symbol, units: int, heads: int, name: str) -> mx.sym.Symbol:
    """The same on (steps, batch, units), as BERT's encoder in GluonNLP has it."""
    parts = _dense(x, 3 * units, f"{name}_qkv")
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(parts, heads=heads)
    weights = mx.sym.Dropout(mx.sym.softmax(scores, axis=-1), p=DROPOUT)
    return mx.sym.contrib.interleaved_matmul_selfatt_valatt(parts, weights, heads=heads)


def _block(x: mx.sym.Symbol, attended: mx.sym.Symbol, units: int, name: str, activation: str) -> mx.sym.Symbol:
    """The rest of a layer, whose norms come last."""

    def norm(y: mx.sym.Symbol, which: str) -> mx.sym.Symbol:
        gamma, beta = (mx.sym.var(f"{name}_{which}_{kind}") for kind in ("gamma", "beta"))
        return mx.sym.LayerNorm(y, gamma, beta, name=f"{name}_{which}")

    x = norm(x + mx.sym.Dropout(_dense(attended, units, f"{name}_proj"), p=DROPOUT), "norm1")
    inner = _dense(x, 4 * units, f"{name}_inner")
    inner = mx.sym.LeakyReLU(inner, act_type="gelu") if activation == "gelu" else mx.sym.relu(inner)
    return norm(x + mx.sym.Dropout(_dense(inner, units, f"{name}_outer"), p=DROPOUT), "norm2")


def _decoded(x: mx.sym.Symbol, words: int) -> mx.sym.Symbol:
    scores = _dense(mx.sym.reshape(x, shape=(-3, 0)), words, "decoder")
    return mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")


def _embedded(words: int, units: int) -> mx.sym.Symbol:
    return mx.sym.Dropout(
        mx.sym.Embedding(mx.sym.var("data"), input_dim=words, output_dim=units, name="embed"), p=DROPOUT
    )


def bert(
    steps: int, batch: int, interleaved: bool = False, layers: int = 6, units: int = 768, heads: int = 12
) -> Model:
    """BERT's encoder and its predictions of all words."""
    x = _embedded(WORDS, units)
    for layer in range(layers):
        name = f"layer{layer}"
        attended = _interleaved(x, units, heads, name) if interleaved else _attended(x, units, heads, None, name)
        x = _block(x, attended, units, name, "gelu")
    shape = (steps, batch) if interleaved else (batch, steps)
    kind = ", interleaved heads" if interleaved else ""
    shapes = {"data": shape, "label": (steps * batch,)}
    return Model(
        f"BERT of {layers} layers, {steps} steps{kind}",
        _decoded(x, WORDS),
        shapes,
        None,
        {"data": WORDS, "label": WORDS},
    )


def small_lm(
    layers: int = 3, units: int = 256, heads: int = 4, steps: int = 64, batch: int = 16, words: int = 5000
) -> Model:
    """A language model with a causal mask."""
    x = _embedded(words, units)
    steps_of = mx.sym.contrib.arange_like(x, axis=1)
    later = mx.sym.broadcast_greater(
        mx.sym.reshape(steps_of, shape=(1, 1, 1, -1)), mx.sym.reshape(steps_of, shape=(1, 1, -1, 1))
    )
    for layer in range(layers):
        x = _block(x, _attended(x, units, heads, later * -1e9, f"layer{layer}"), units, f"layer{layer}", "relu")
    shapes = {"data": (batch, steps), "label": (steps * batch,)}
    return Model("Transformer language model, small", _decoded(x, words), shapes, None, {"data": words, "label": words})


def alone(steps: int, batch: int = 16, heads: int = 12, depth: int = 64) -> Model:
    """Attention alone, its inputs trained."""
    q, k, v = (mx.sym.var(name, shape=(batch * heads, steps, depth)) for name in "qkv")
    return Model(f"attention, {steps} steps", weighed(q, k, v, depth), {})
