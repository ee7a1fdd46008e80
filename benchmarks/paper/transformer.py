"""Transformer base (Vaswani et al., 2017): 6 + 6 layers of 512 units, 8 heads, 4096 words a batch, 32,000 word pieces.

A batch is 64 pairs of 64 words each way. The three matrices of words are one, as published; positions are learned ones,
which take the place of sines at the same memory. No sentence is shorter than its batch, so that no length is masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mxnet as mx

from benchmarks.attention_models import DROPOUT, weighed
from benchmarks.models import Model


@dataclass(frozen=True)
class Setting:
    """``layers`` in encoder and decoder each."""

    layers: int = 6
    units: int = 512
    heads: int = 8
    inner: int = 2048
    batch: int = 64
    steps: int = 64
    words: int = 32000


def model(name: str, setting: Setting) -> Model:
    """The training symbol: `source`, `target` (batch, steps) and `label` (batch * steps) token ids."""
    with mx.name.NameManager():
        symbol = _symbol(setting)
    tokens = (setting.batch, setting.steps)
    shapes = {"source": tokens, "target": tokens, "label": (math.prod(tokens),)}
    return Model(name, symbol, shapes, limits=dict.fromkeys(shapes, setting.words))


def _symbol(setting: Setting) -> mx.sym.Symbol:
    words = mx.sym.var("words_weight")
    encoded = _embedded("source", words, setting)
    for layer in range(setting.layers):
        name = f"encoder{layer}"
        encoded = _added(encoded, _attended(encoded, encoded, setting, f"{name}_self"), f"{name}_norm1")
        encoded = _added(encoded, _fed(encoded, setting, name), f"{name}_norm2")
    x = _embedded("target", words, setting)
    later = _later(x)
    for layer in range(setting.layers):
        name = f"decoder{layer}"
        x = _added(x, _attended(x, x, setting, f"{name}_self", later), f"{name}_norm1")
        x = _added(x, _attended(x, encoded, setting, f"{name}_source"), f"{name}_norm2")
        x = _added(x, _fed(x, setting, name), f"{name}_norm3")
    flat = mx.sym.reshape(x, shape=(-3, 0))
    logits = mx.sym.FullyConnected(flat, weight=words, no_bias=True, num_hidden=setting.words, name="logits")
    return mx.sym.SoftmaxOutput(logits, mx.sym.var("label"), smooth_alpha=0.1, name="softmax")


def _embedded(name: str, words: mx.sym.Symbol, setting: Setting) -> mx.sym.Symbol:
    """Word vectors, scaled, plus those of positions."""
    found = mx.sym.Embedding(
        mx.sym.var(name), weight=words, input_dim=setting.words, output_dim=setting.units, name=f"{name}_embedding"
    )
    positions = mx.sym.var(f"{name}_positions_weight", shape=(1, setting.steps, setting.units))
    return mx.sym.Dropout(mx.sym.broadcast_add(found * math.sqrt(setting.units), positions), p=DROPOUT)


def _later(x: mx.sym.Symbol) -> mx.sym.Symbol:
    """The mask that is added to the scores, so that no word sees those after it."""
    steps = mx.sym.contrib.arange_like(x, axis=1)
    column, row = (mx.sym.reshape(steps, shape=shape) for shape in ((1, 1, 1, -1), (1, 1, -1, 1)))
    return mx.sym.broadcast_greater(column, row) * -1e9


def _attended(
    x: mx.sym.Symbol, read: mx.sym.Symbol, setting: Setting, name: str, mask: mx.sym.Symbol | None = None
) -> mx.sym.Symbol:
    """Heads of ``x`` over ``read``, (batch, steps, units) each."""
    heads = setting.heads
    q, k, v = (
        _split(_dense(source, setting.units, f"{name}_{part}"), heads)
        for part, source in (("q", x), ("k", read), ("v", read))
    )
    found = weighed(q, k, v, setting.units // heads, mask, heads)
    parts = mx.sym.transpose(mx.sym.reshape(found, shape=(-4, -1, heads, 0, 0)), axes=(0, 2, 1, 3))
    return _dense(mx.sym.reshape(parts, shape=(0, 0, -3)), setting.units, f"{name}_out")


def _split(x: mx.sym.Symbol, heads: int) -> mx.sym.Symbol:
    """(batch, steps, units) as (batch * heads, steps, units / heads)."""
    parts = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3))
    return mx.sym.reshape(parts, shape=(-1, 0, 0), reverse=True)


def _fed(x: mx.sym.Symbol, setting: Setting, name: str) -> mx.sym.Symbol:
    inner = mx.sym.Activation(_dense(x, setting.inner, f"{name}_inner"), act_type="relu", name=f"{name}_relu")
    return _dense(inner, setting.units, f"{name}_outer")


def _added(x: mx.sym.Symbol, found: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    """The sum of a layer's input and its dropped output, normalized."""
    gamma, beta = (mx.sym.var(f"{name}_{part}") for part in ("gamma", "beta"))
    return mx.sym.LayerNorm(x + mx.sym.Dropout(found, p=DROPOUT), gamma, beta, name=name)


def _dense(x: mx.sym.Symbol, size: int, name: str) -> mx.sym.Symbol:
    return mx.sym.FullyConnected(x, num_hidden=size, flatten=False, name=name)
