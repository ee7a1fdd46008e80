"""Whole models as Sockeye 1.18 builds them, small: recurrent ones and Transformers, with weights to start from."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import mxnet as mx
import numpy as np

from tests.support.fused_models import Example

HIDDEN, BATCH, SOURCE, TARGET, WORDS = 64, 8, 12, 10, 90
Symbol = mx.sym.Symbol


def _norm(x: Symbol, name: str, params: Any) -> Symbol:
    return mx.sym.LayerNorm(x, params.get(f"{name}_scale"), params.get(f"{name}_shift"), axis=-1, eps=1e-6)


def _gates(cell: Any, x: Symbol, h: Symbol, count: int) -> tuple[Symbol, Symbol]:
    size = count * cell._num_hidden
    of_input = mx.sym.FullyConnected(x, cell._iW, cell._iB, num_hidden=size)
    return of_input, mx.sym.FullyConnected(h, cell._hW, cell._hB, num_hidden=size)


class NormedLSTM(mx.rnn.LSTMCell):  # type: ignore[misc]
    """Layer norms of both products and of the state: Sockeye's ``lnlstm``."""

    def __call__(self, inputs: Symbol, states: list[Symbol]) -> tuple[Symbol, list[Symbol]]:
        i2h, h2h = _gates(self, inputs, states[0], 4)
        total = _norm(i2h, "i2h", self.params) + _norm(h2h + mx.sym.zeros_like(i2h), "h2h", self.params)
        i, f, g, o = mx.sym.split(total, num_outputs=4, axis=1)
        c = mx.sym.sigmoid(f) * states[1] + mx.sym.sigmoid(i) * mx.sym.tanh(g)
        h = mx.sym.sigmoid(o) * mx.sym.tanh(_norm(c, "c", self.params))
        return h, [h, c]


class NormedGatesLSTM(mx.rnn.LSTMCell):  # type: ignore[misc]
    """A layer norm of each gate: Sockeye's ``lnglstm``."""

    def __call__(self, inputs: Symbol, states: list[Symbol]) -> tuple[Symbol, list[Symbol]]:
        i2h, h2h = _gates(self, inputs, states[0], 4)
        parts = mx.sym.split(i2h + h2h, num_outputs=4, axis=1)
        i, f, g, o = (_norm(part, name, self.params) for part, name in zip(parts, "ifgo"))
        c = mx.sym.sigmoid(f) * states[1] + mx.sym.sigmoid(i) * mx.sym.tanh(g)
        h = mx.sym.sigmoid(o) * mx.sym.tanh(_norm(c, "s", self.params))
        return h, [h, c]


class NormedGRU(mx.rnn.GRUCell):  # type: ignore[misc]
    """Layer norms of both products: Sockeye's ``lngru``."""

    def __call__(self, inputs: Symbol, states: list[Symbol]) -> tuple[Symbol, list[Symbol]]:
        i2h, h2h = _gates(self, inputs, states[0], 3)
        x = mx.sym.split(_norm(i2h, "i2h", self.params), num_outputs=3, axis=1)
        s = mx.sym.split(_norm(h2h + mx.sym.zeros_like(i2h), "h2h", self.params), num_outputs=3, axis=1)
        reset, update = mx.sym.sigmoid(x[0] + s[0]), mx.sym.sigmoid(x[1] + s[1])
        h = (1 - update) * mx.sym.tanh(x[2] + reset * s[2]) + update * states[0]
        return h, [h]


_CELLS: Mapping[str, Callable[..., Any]] = {
    "lstm": mx.rnn.LSTMCell, "lnlstm": NormedLSTM, "lnglstm": NormedGatesLSTM, "gru": mx.rnn.GRUCell,
    "lngru": NormedGRU,
}  # fmt: skip


def _stack(kind: str, layers: int, residual: bool, both_ways: bool, name: str) -> Any:
    """Layers of cells; the first one in both ways, as Sockeye's encoders have it, the others with their input added."""
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(layers):
        cell = _CELLS[kind](HIDDEN, prefix=f"{name}{layer}_")
        if both_ways and layer == 0:
            halves = (_CELLS[kind](HIDDEN // 2, prefix=f"{name}_{way}_") for way in ("forth", "back"))
            cell = mx.rnn.BidirectionalCell(*halves)
        stack.add(mx.rnn.ResidualCell(cell) if residual and layer else cell)
    return stack


def _score(kind: str, memory: Symbol, keys: Symbol, query: Symbol, params: Any) -> Symbol:
    """The score [B,T,1] of each position of the source."""
    asked = mx.sym.FullyConnected(query, params.get("query_weight"), num_hidden=HIDDEN, no_bias=True)
    if kind == "mlp":
        mixed = mx.sym.tanh(mx.sym.broadcast_add(keys, mx.sym.expand_dims(asked, axis=1)))
        return mx.sym.FullyConnected(mixed, params.get("v_weight"), num_hidden=1, no_bias=True, flatten=False)
    return mx.sym.batch_dot(memory, mx.sym.expand_dims(asked, axis=2)) / np.sqrt(HIDDEN)


def _embedded(name: str) -> Symbol:
    """Vectors of words, of the type of their weight: an Embedding has one of its own."""
    return mx.sym.take(mx.sym.var(f"{name}_embed_weight", shape=(WORDS, HIDDEN)), mx.sym.var(name))


def _zeros(cell: Any, like: Symbol) -> list[Symbol]:
    """First states, of the type of a symbol [B,H]."""
    sizes = [info["shape"][1] for info in cell.state_info]
    zero = mx.sym.BlockGrad(mx.sym.zeros_like(like))
    return [zero if size == HIDDEN else mx.sym.slice_axis(zero, axis=1, begin=0, end=size) for size in sizes]


def translator(kind: str, layers: int = 1, residual: bool = False, both_ways: bool = False, attention: str = "mlp",
               norm: bool = False) -> Example:  # fmt: skip
    """An encoder, a decoder that is fed what it attended to, and a softmax over words."""
    with mx.name.NameManager():
        words = _embedded("target")
        steps = mx.sym.split(words, num_outputs=TARGET, axis=1, squeeze_axis=True)
        encoder = _stack(kind, layers, residual, both_ways, "encoder")
        memory, _ = encoder.unroll(SOURCE, _embedded("source"), begin_state=_zeros(encoder, steps[0]), layout="NTC",
                                   merge_outputs=True)  # fmt: skip
        keys = mx.sym.FullyConnected(memory, num_hidden=HIDDEN, flatten=False, no_bias=True, name="keys")
        decoder, params = _stack(kind, layers, residual, False, "decoder"), mx.rnn.RNNParams("attention_")
        states, fed, rows = _zeros(decoder, steps[0]), mx.sym.zeros_like(steps[0]), []
        for step in range(TARGET):
            output, states = decoder(mx.sym.Concat(steps[step], fed, dim=1), states)
            weights = mx.sym.softmax(_score(attention, memory, keys, output, params), axis=1)
            context = mx.sym.sum(mx.sym.broadcast_mul(memory, weights), axis=1)
            fed = mx.sym.FullyConnected(mx.sym.Concat(output, context, dim=1), params.get("fed_weight"),
                                        params.get("fed_bias"), num_hidden=HIDDEN)  # fmt: skip
            fed = mx.sym.tanh(_norm(fed, "fed", params) if norm else fed)
            rows.append(mx.sym.expand_dims(fed, axis=1))
        return _words_of(mx.sym.Concat(*rows, dim=1))


def _words_of(hidden: Symbol) -> Example:
    scores = mx.sym.FullyConnected(mx.sym.Reshape(hidden, shape=(-3, 0)), num_hidden=WORDS, name="scores")
    label = mx.sym.Reshape(mx.sym.var("label"), shape=(-1,))
    symbol = mx.sym.SoftmaxOutput(scores, label, use_ignore=True, ignore_label=0, normalization="valid", name="softmax")
    shapes = {"source": (BATCH, SOURCE), "target": (BATCH, TARGET), "label": (BATCH, TARGET)}
    return Example(symbol, shapes, {}, dict.fromkeys(shapes, WORDS))


def _heads(x: Symbol, name: str) -> Symbol:
    """[B,T,H] as [B*4,T,H/4], after a product."""
    x = mx.sym.FullyConnected(x, num_hidden=HIDDEN, no_bias=True, flatten=False, name=name)
    x = mx.sym.transpose(mx.sym.Reshape(x, shape=(0, 0, 4, -1)), axes=(0, 2, 1, 3))
    return mx.sym.Reshape(x, shape=(-3, 0, 0))


def _attended(x: Symbol, memory: Symbol, name: str) -> Symbol:
    scores = mx.sym.batch_dot(_heads(x, f"{name}_q") * (HIDDEN // 4) ** -0.5, _heads(memory, f"{name}_k"),
                              transpose_b=True)  # fmt: skip
    mixed = mx.sym.batch_dot(mx.sym.softmax(scores, axis=-1), _heads(memory, f"{name}_v"))
    mixed = mx.sym.Reshape(mixed, shape=(-4, -1, 4, 0, 0))
    mixed = mx.sym.Reshape(mx.sym.transpose(mixed, axes=(0, 2, 1, 3)), shape=(0, 0, -1))
    return mx.sym.FullyConnected(mixed, num_hidden=HIDDEN, no_bias=True, flatten=False, name=f"{name}_o")


def _block(x: Symbol, memories: Mapping[str, Symbol | None], name: str) -> Symbol:
    """Attention to each of the memories (None: to itself) and a layer, each after a layer norm and with its input."""

    def normed(x: Symbol, part: str) -> Symbol:
        scale, shift = (mx.sym.var(f"{name}_{part}_{kind}") for kind in ("scale", "shift"))
        return mx.sym.LayerNorm(x, scale, shift, eps=1e-6)

    for part, memory in memories.items():
        own = normed(x, part)
        x = x + _attended(own, own if memory is None else memory, f"{name}_{part}")
    wide = mx.sym.FullyConnected(normed(x, "ff"), num_hidden=4 * HIDDEN, flatten=False, name=f"{name}_wide")
    wide = mx.sym.Activation(wide, act_type="relu")
    return x + mx.sym.FullyConnected(wide, num_hidden=HIDDEN, flatten=False, name=f"{name}_narrow")


def transformer(layers: int = 2) -> Example:
    """Self-attention, attention to the source, feed-forward layers, with layer norm in front of each."""
    with mx.name.NameManager():
        x, y = _embedded("source"), _embedded("target")
        for layer in range(layers):
            x = _block(x, {"self": None}, f"encoder{layer}")
        for layer in range(layers):
            y = _block(y, {"self": None, "source": x}, f"decoder{layer}")
        return _words_of(y)


MODELS: Mapping[str, Callable[[], Example]] = {
    **{kind: lambda kind=kind: translator(kind) for kind in _CELLS},
    **{f"{kind}, three layers, residual": lambda kind=kind: translator(kind, 3, residual=True) for kind in _CELLS},
    **{f"{kind}, two layers, both ways": lambda kind=kind: translator(kind, 2, both_ways=True) for kind in _CELLS},
    **{f"{kind}, dot attention": lambda kind=kind: translator(kind, attention="dot") for kind in ("lstm", "gru")},
    "lstm, two layers, normed attention": lambda: translator("lstm", 2, norm=True),
    "transformer": transformer,
    "transformer, four layers": lambda: transformer(4),
}


def first_values(example: Example, seed: int = 5) -> dict[str, Any]:
    """Words, and weights as Sockeye starts from: of products by their inputs, ones and zeros in layer norms."""
    random = np.random.default_rng(seed)
    shapes, _, _ = example.symbol.infer_shape(**example.shapes)
    found = {}
    for name, shape in zip(example.symbol.list_arguments(), shapes):
        if name in example.integers:
            found[name] = random.integers(0, example.integers[name], shape).astype(np.float32)
        elif name.endswith(("_scale", "_gamma")):
            found[name] = np.ones(shape, np.float32)
        elif name.endswith(("_shift", "_beta", "_bias")):
            found[name] = np.zeros(shape, np.float32)
        else:
            found[name] = random.uniform(-1, 1, shape).astype(np.float32) * np.float32(np.sqrt(3 / shape[-1]))
    return found
