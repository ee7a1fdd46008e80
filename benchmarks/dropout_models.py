"""Models with Dropout, whose masks are a part of what is stashed: layers, a language model, a Transformer's encoder."""

from __future__ import annotations

import mxnet as mx

from benchmarks.models import Model

_VOCABULARY = 2000


def mlp(batch: int = 256, width: int = 1024, layers: int = 4) -> Model:
    """Fully connected layers with ReLU and Dropout: `data` (batch, 784), `softmax_label` (batch)."""
    x = mx.sym.var("data")
    for k in range(layers):
        x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=width, name=f"layer{k}"), act_type="relu")
        x = mx.sym.Dropout(x, p=0.5, name=f"drop{k}")
    scores = mx.sym.FullyConnected(x, num_hidden=10, name="scores")
    shapes = {"data": (batch, 784), "softmax_label": (batch,)}
    output = mx.sym.SoftmaxOutput(scores, mx.sym.var("softmax_label"), name="softmax")
    return Model("layers with Dropout", output, shapes, limits={"softmax_label": 10})


def lm(batch: int = 32, steps: int = 35, hidden: int = 256, layers: int = 2) -> Model:
    """LSTM layers with Dropout between them, step by step: `data` and `softmax_label` (batch, steps)."""
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=_VOCABULARY, output_dim=hidden, name="embed")
    stack = mx.rnn.SequentialRNNCell()
    for k in range(layers):
        stack.add(mx.rnn.LSTMCell(hidden, prefix=f"lstm{k}_"))
        stack.add(mx.rnn.DropoutCell(0.3, prefix=f"drop{k}_"))
    outputs, _ = stack.unroll(steps, mx.sym.Dropout(words, p=0.3, name="drop"), layout="NTC", merge_outputs=True)
    return _model("LM with Dropout", mx.sym.Reshape(outputs, shape=(-1, hidden)), batch, steps)


def transformer(batch: int = 32, steps: int = 30, size: int = 256, heads: int = 8, layers: int = 3) -> Model:
    """Self-attention and feed-forward blocks, each with Dropout and layer norm after it: as ``lm``."""
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=_VOCABULARY, output_dim=size, name="embed")
    x = _dropped(words, "embed")
    for k in range(layers):
        attended = _dense(_attention(x, size, heads, k), size, f"joined{k}")
        x = mx.sym.LayerNorm(x + _dropped(attended, f"joined{k}"), name=f"norm{k}a")
        inner = mx.sym.Activation(_dense(x, 4 * size, f"inner{k}"), act_type="relu")
        x = mx.sym.LayerNorm(x + _dropped(_dense(_dropped(inner, f"inner{k}"), size, f"outer{k}"), f"outer{k}"))
    return _model("Transformer with Dropout", mx.sym.Reshape(x, shape=(-3, 0)), batch, steps)


def _attention(x: mx.sym.Symbol, size: int, heads: int, layer: int) -> mx.sym.Symbol:
    depth = size // heads

    def apart(name: str) -> mx.sym.Symbol:
        parts = mx.sym.Reshape(_dense(x, size, f"{name}{layer}"), shape=(0, 0, -4, heads, depth))
        return mx.sym.Reshape(mx.sym.transpose(parts, axes=(0, 2, 1, 3)), shape=(-3, -2))

    scores = mx.sym.batch_dot(apart("query") * depth**-0.5, apart("key"), transpose_b=True)
    weights = _dropped(mx.sym.softmax(scores, axis=-1), f"weights{layer}")
    parts = mx.sym.Reshape(mx.sym.batch_dot(weights, apart("value")), shape=(-4, -1, heads, 0, 0))
    return mx.sym.Reshape(mx.sym.transpose(parts, axes=(0, 2, 1, 3)), shape=(0, 0, -3))


def _dense(x: mx.sym.Symbol, size: int, name: str) -> mx.sym.Symbol:
    return mx.sym.FullyConnected(x, num_hidden=size, flatten=False, name=name)


def _dropped(x: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    return mx.sym.Dropout(x, p=0.1, name=f"{name}_drop")


def _model(name: str, rows: mx.sym.Symbol, batch: int, steps: int) -> Model:
    """A prediction of words from rows (batch * steps, size)."""
    scores = mx.sym.FullyConnected(rows, num_hidden=_VOCABULARY, name="scores")
    label = mx.sym.Reshape(mx.sym.var("softmax_label"), shape=(-1,))
    shapes = dict.fromkeys(("data", "softmax_label"), (batch, steps))
    output = mx.sym.SoftmaxOutput(scores, label, name="softmax")
    return Model(name, output, shapes, limits=dict.fromkeys(shapes, _VOCABULARY))
