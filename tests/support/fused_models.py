"""Small symbols with the patterns that fused operators take the place of, and what has to be found in each."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import mxnet as mx
import numpy as np

from echo.ir.graph import Setting
from tests.support.attention_models import ATTENTIONS, FORMS, Example
from tests.support.reset_gru_models import RESET_GRUS

SIZE, BATCH, STEPS = 6, 3, 9
ON_CPU = Setting(onednn_rnn=True)  # what patterns are told on CPUs, but that kernels draw


def _unrolled(cell: Any, layout: str = "NTC", found: Mapping[str, int] | None = None) -> Example:
    with mx.name.NameManager():
        outputs, states = cell.unroll(STEPS, mx.sym.var("data"), layout=layout, merge_outputs=True)
    shape = (BATCH, STEPS, SIZE + 1) if layout == "NTC" else (STEPS, BATCH, SIZE + 1)
    last = [state for state in states if isinstance(state, mx.sym.Symbol)]  # of both ways they come in lists
    return Example(mx.sym.Group([outputs, *last]), {"data": shape}, found or {"lstm_layer": 1}, {})


def _stacked(cell: Callable[..., Any] = mx.rnn.LSTMCell, pattern: str = "lstm_layer") -> Example:
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(cell(SIZE, prefix=f"l{layer}_"))
    return _unrolled(stack, found={pattern: 2})


def _both_ways(cell: Callable[..., Any] = mx.rnn.LSTMCell, pattern: str = "lstm_layer") -> Example:
    both = mx.rnn.BidirectionalCell(cell(SIZE, prefix="l_"), cell(SIZE, prefix="r_"))
    return _unrolled(both, found={pattern: 2})


def _given(*cells: Any, layout: str = "NTC", found: Mapping[str, int]) -> Example:
    """Cells whose first states are arguments, as where the steps of a long sequence are trained in parts.

    Each cell goes on from the states of the one before.
    """
    with mx.name.NameManager():
        first, outputs, data = mx.sym.var("h0"), [], mx.sym.var("data")
        states = [first, mx.sym.var("c0")][: len(cells[0].state_info)]
        for cell in cells:
            output, states = cell.unroll(STEPS, data, begin_state=states, layout=layout, merge_outputs=True)
            outputs.append(output)
    shape = (BATCH, STEPS, SIZE) if layout == "NTC" else (STEPS, BATCH, SIZE)
    shapes = {"data": shape, "h0": (BATCH, SIZE)}
    if len(states) > 1:
        shapes["c0"] = (BATCH, SIZE)
    return Example(mx.sym.Group([*outputs, *states]), shapes, found, {})


def _layers_given(layout: str, *names: str) -> Example:
    cells = [mx.rnn.LSTMCell(SIZE, prefix=f"{name}_") for name in names]
    return _given(*cells, layout=layout, found={"lstm_layer": len(names)})


def ordered_lstm(places: Sequence[int], fed: bool = False, **attrs: Any) -> Example:
    """Cells by hand whose gates i, f, g and o stand at these places, as those of MXNet's ctc and nce examples do.

    If ``fed``, each step reads what the one before put out; ``attrs`` are those of the split.
    """
    wi, bi, wh, bh = (mx.sym.var(name) for name in ("wi", "bi", "wh", "bh"))
    steps = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=STEPS, axis=1, squeeze_axis=True)
    h, c, outputs = mx.sym.var("h0"), mx.sym.var("c0"), []
    for t in range(STEPS):
        i2h = mx.sym.FullyConnected(steps[t] + h if fed else steps[t], wi, bi, num_hidden=4 * SIZE)
        gates = i2h + mx.sym.FullyConnected(h, wh, bh, num_hidden=4 * SIZE)
        parts = mx.sym.SliceChannel(gates, num_outputs=4, **attrs)
        i, f, g, o = (parts[place] for place in places)
        c = mx.sym.Activation(f, act_type="sigmoid") * c + mx.sym.sigmoid(i) * mx.sym.Activation(g, act_type="tanh")
        h = mx.sym.Activation(o, act_type="sigmoid") * mx.sym.Activation(c, act_type="tanh")
        outputs.append(h)
    shapes = {"data": (BATCH, STEPS, SIZE), "h0": (BATCH, SIZE), "c0": (BATCH, SIZE)}
    found = {"lstm_cell": STEPS} if fed else {"lstm_layer": 1}
    return Example(mx.sym.Group([mx.sym.Concat(*outputs, dim=0), c]), shapes, found, {})


def ordered_gru(places: Sequence[int]) -> Example:
    """The same of a GRU's gates r, z and n; layers know one order only."""
    steps = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=STEPS, axis=1, squeeze_axis=True)
    weights = [mx.sym.var(name) for name in ("wi", "bi", "wh", "bh")]
    h, outputs = mx.sym.var("h0"), []
    for t in range(STEPS):
        x = mx.sym.SliceChannel(mx.sym.FullyConnected(steps[t], *weights[:2], num_hidden=3 * SIZE), num_outputs=3)
        s = mx.sym.SliceChannel(mx.sym.FullyConnected(h, *weights[2:], num_hidden=3 * SIZE), num_outputs=3)
        (x_r, x_z, x_n), (s_r, s_z, s_n) = ([parts[place] for place in places] for parts in (x, s))
        z = mx.sym.sigmoid(x_z + s_z)
        h = (1 - z) * mx.sym.tanh(x_n + mx.sym.sigmoid(x_r + s_r) * s_n) + z * h
        outputs.append(h)
    found = {"gru_layer": 1} if list(places) == [0, 1, 2] else {"gru_cell": STEPS}
    return Example(mx.sym.Concat(*outputs, dim=0), {"data": (BATCH, STEPS, SIZE), "h0": (BATCH, SIZE)}, found, {})


def _fed(build: Callable[..., Any] = mx.rnn.LSTMCell, pattern: str = "lstm_cell") -> Example:
    """Each step reads what the one before put out, so its products cannot be put together."""
    cell, h = build(SIZE, prefix="fed_"), mx.sym.var("start")
    states = [mx.sym.var("h0"), mx.sym.var("c0")][: len(cell.state_info)]
    outputs = []
    for _ in range(STEPS):
        h, states = cell(h * 2, states)
        outputs.append(h)
    shapes = dict.fromkeys(("start", "h0", "c0")[: 1 + len(states)], (BATCH, SIZE))
    return Example(mx.sym.Concat(*outputs, dim=1), shapes, {pattern: STEPS}, {})


def _normed() -> Example:
    """As Sockeye's cells with layer norm: of both products, and of the state."""
    weights = [mx.sym.var(name) for name in ("wi", "bi", "wh", "bh")]
    norms = [[mx.sym.var(f"{kind}_{name}") for name in ("gamma", "beta")] for kind in ("i", "h", "c")]
    steps = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=STEPS, axis=1, squeeze_axis=True)
    h, c, outputs = mx.sym.var("h0"), mx.sym.var("c0"), []
    for step in range(STEPS):
        i2h = mx.sym.FullyConnected(steps[step], *weights[:2], num_hidden=4 * SIZE)
        h2h = mx.sym.FullyConnected(h, *weights[2:], num_hidden=4 * SIZE)
        gates = mx.sym.LayerNorm(i2h, *norms[0]) + mx.sym.LayerNorm(h2h, *norms[1])
        i, f, g, o = mx.sym.split(gates, num_outputs=4, axis=1)
        c = mx.sym.sigmoid(f) * c + mx.sym.sigmoid(i) * mx.sym.tanh(g)
        h = mx.sym.sigmoid(o) * mx.sym.Activation(mx.sym.LayerNorm(c, *norms[2], eps=1e-6), act_type="tanh")
        outputs.append(h)
    shapes = {"data": (BATCH, STEPS, SIZE), "h0": (BATCH, SIZE), "c0": (BATCH, SIZE)}
    return Example(mx.sym.Group([mx.sym.Concat(*outputs, dim=0), c]), shapes, {"lstm_cell": STEPS}, {}, fuse="memory")


def _gluon_cell(build: Callable[..., Any], found: Mapping[str, int]) -> Example:
    cell = build(SIZE, prefix="cell_")
    cell.initialize()
    return _unrolled(cell, found=found)


def _gluon_layers(
    layers: int, bidirectional: bool, build: Callable[..., Any] = mx.gluon.rnn.LSTM, **more: Any
) -> Example:
    net = build(SIZE, layers, bidirectional=bidirectional, prefix="net_", **more)
    names = ("h", "c") if build is mx.gluon.rnn.LSTM else ("h",)
    output, last = net(mx.sym.var("data"), [mx.sym.var(name) for name in names])
    states = dict.fromkeys(names, (layers * (2 if bidirectional else 1), BATCH, SIZE))
    last = last if isinstance(last, list) else [last]
    return Example(mx.sym.Group([output, *last]), {"data": (4 * STEPS, BATCH, SIZE + 1), **states}, {"rnn": 1}, {})


def _packed(layers: int, mode: str = "lstm", **more: Any) -> Example:
    cell = mx.rnn.FusedRNNCell(SIZE, layers, mode=mode, prefix="packed_", **more)
    outputs, _ = cell.unroll(8 * STEPS, mx.sym.var("data"), layout="TNC", merge_outputs=True)
    return Example(outputs, {"data": (8 * STEPS, BATCH, SIZE)}, {"rnn": 1}, {})


def attention(norm: bool, steps: int = STEPS) -> Example:
    """Some queries on the same keys, as of a decoder: enough for MXNet to add gradients up in place."""
    memory = mx.sym.var("memory")
    keys = mx.sym.FullyConnected(memory, num_hidden=SIZE, flatten=False, no_bias=True, name="keys")
    query = mx.sym.SliceChannel(mx.sym.var("queries"), num_outputs=steps, axis=1, squeeze_axis=True)
    v, gamma, beta = (mx.sym.var(name) for name in ("v", "gamma", "beta"))
    contexts = []
    for step in range(steps):
        mixed = mx.sym.broadcast_add(keys, mx.sym.expand_dims(query[step], axis=1))
        if norm:
            mixed = mx.sym.LayerNorm(mixed, gamma, beta, axis=-1, eps=1e-6)
        score = mx.sym.FullyConnected(mx.sym.tanh(mixed), v, num_hidden=1, no_bias=True, flatten=False)
        contexts.append(mx.sym.sum(mx.sym.broadcast_mul(memory, mx.sym.softmax(score, axis=1)), axis=1))
    shapes = {"memory": (BATCH, 5, SIZE + 1), "queries": (BATCH, steps, SIZE)}
    return Example(mx.sym.Concat(*contexts, dim=1), shapes, {"mlp_score": steps, "weighted_sum": steps}, {})


def decoder(activation: Callable[..., mx.sym.Symbol] = mx.sym.tanh, steps: int = 12, keys: int = 40) -> Example:
    """Attention of each step of an LSTM, as Gluon writes it: queries come before keys, weights before values."""
    memory, query, v = mx.sym.var("memory"), mx.sym.var("query_weight"), mx.sym.var("v")
    cell = mx.rnn.LSTMCell(SIZE, prefix="l_")
    outputs, _ = cell.unroll(steps, mx.sym.var("data"), layout="NTC", merge_outputs=False)
    known = mx.sym.FullyConnected(memory, num_hidden=SIZE, flatten=False, no_bias=True, name="keys")
    rows = []
    for output in outputs:
        asked = mx.sym.expand_dims(mx.sym.FullyConnected(output, query, num_hidden=SIZE, no_bias=True), axis=1)
        mixed = activation(mx.sym.broadcast_add(asked, known))
        score = mx.sym.FullyConnected(mixed, v, num_hidden=1, no_bias=True, flatten=False)
        context = mx.sym.sum(mx.sym.broadcast_mul(mx.sym.softmax(score, axis=1), memory), axis=1)
        rows.append(mx.sym.Concat(output, context, dim=1))
    shapes = {"memory": (BATCH, keys, SIZE), "data": (BATCH, steps, SIZE)}
    found = {"lstm_layer": 1, "mlp_score": steps, "weighted_sum": steps}
    return Example(mx.sym.Concat(*rows, dim=1), shapes, found, {})


def _attention_by_hand() -> Example:
    keys, query, v = mx.sym.var("keys"), mx.sym.var("query"), mx.sym.var("v", shape=(1, 1, SIZE))
    active = mx.sym.tanh(mx.sym.broadcast_add(keys, mx.sym.expand_dims(query, axis=1)))
    score = mx.sym.sum(mx.sym.broadcast_mul(active, v), axis=2)
    return Example(score, {"keys": (BATCH, 5, SIZE), "query": (BATCH, SIZE)}, {"mlp_score": 1}, {})


def _softmax(**options: Any) -> Example:
    words = 700
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=words, name="scores")
    symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax", **options)
    return Example(symbol, {"data": (600, SIZE), "label": (600,)}, {"softmax_output": 1}, {"label": words})


def _cross_entropy(layer: bool, smooth: bool = False, steps: int = 0, kind: str = "float32") -> Example:
    """As Gluon's SoftmaxCrossEntropyLoss has it, and with smoothed labels as Sockeye 2's loss."""
    words, rows = 700, (600, *([steps] if steps else []))
    scores, shapes = mx.sym.var("data"), {"data": (*rows, words)}
    if layer:
        scores = mx.sym.FullyConnected(scores, num_hidden=words, flatten=not steps, name="scores")
        shapes = {"data": (*rows, SIZE)}
    logarithms = mx.sym.log_softmax(scores, axis=-1)
    label = mx.sym.var("label")
    picked = mx.sym.pick(logarithms, mx.sym.Cast(label, dtype=kind), axis=-1, keepdims=not smooth)
    loss = -0.9 * picked - 0.1 / words * mx.sym.sum(logarithms, axis=-1) if smooth else -picked
    return Example(loss * loss, {**shapes, "label": rows}, {"cross_entropy": 1}, {"label": words})


def _norm() -> Example:
    x, gamma, beta = (mx.sym.var(name) for name in ("data", "gamma", "beta"))
    for _ in range(4):
        x = mx.sym.tanh(mx.sym.LayerNorm(x, gamma, beta, eps=1e-3))
    return Example(x, {"data": (BATCH, 500, 4 * SIZE)}, {"layer_norm": 4}, {})


def _reversed(with_lengths: bool) -> Example:
    data, shapes = mx.sym.var("data"), {"data": (STEPS, BATCH, 200 * SIZE)}
    given = [mx.sym.var("lengths")] if with_lengths else []
    if with_lengths:
        shapes["lengths"] = (BATCH,)
    for _ in range(4):
        data = mx.sym.tanh(mx.sym.SequenceReverse(data, *given, use_sequence_length=with_lengths))
    return Example(data, shapes, {"sequence_reverse": 4}, {"lengths": STEPS} if with_lengths else {})


def _dropped() -> Example:
    """Layers with Dropout between them, and in other forms: of a variable, twice of one array, always."""
    data = mx.sym.var("data")
    x = mx.sym.Dropout(data, p=0.2)
    for layer in range(2):
        dense = mx.sym.tanh(mx.sym.FullyConnected(x, num_hidden=64, name=f"dense{layer}"))
        x = mx.sym.Dropout(dense, p=0.3) + mx.sym.Dropout(dense, p=0.3)
    x = mx.sym.Dropout(x * x, p=0.5, mode="always")
    return Example(x, {"data": (150, 64)}, {"dropout": 6}, {})


def _rectified() -> Example:
    x = mx.sym.var("data")
    for layer in range(4):
        dense = mx.sym.FullyConnected(x, num_hidden=64, name=f"dense{layer}")
        x = x + mx.sym.Activation(dense, act_type="relu")
    return Example(mx.sym.mean(mx.sym.relu(x), axis=0), {"data": (300, 64)}, {"relu": 5}, {})


def _biased() -> Example:
    """Biases as vectors and as rows."""
    x, shapes = mx.sym.var("data"), {"data": (5, BATCH, SIZE)}
    for number, kind in enumerate(("relu", "sigmoid", "tanh", "softrelu")):
        x = mx.sym.FullyConnected(x, num_hidden=SIZE, no_bias=True, flatten=False, name=f"dense{number}")
        bias = mx.sym.var(f"bias{number}", shape=(SIZE,) if number % 2 else (1, SIZE))
        x = mx.sym.Activation(mx.sym.broadcast_add(x, bias), act_type=kind)
    rows = mx.sym.Reshape(mx.sym.var("last", shape=(SIZE,)), shape=(1, -1))
    return Example(mx.sym.sigmoid(mx.sym.broadcast_add(x, rows)), shapes, {"bias_act": 5}, {})


EXAMPLES: Mapping[str, Callable[[], Example]] = {
    "lstm layer": lambda: _unrolled(mx.rnn.LSTMCell(SIZE)),
    "lstm layer, time first": lambda: _unrolled(mx.rnn.LSTMCell(SIZE), "TNC"),
    "lstm layers": _stacked,
    "lstm layers, both ways": _both_ways,
    "lstm layer, states given": lambda: _layers_given("NTC", "l"),
    "lstm layer, time first, states given": lambda: _layers_given("TNC", "l"),
    "lstm layers that go on, states given": lambda: _layers_given("NTC", "l", "r"),
    "lstm layer, gates i g f o": lambda: ordered_lstm((0, 2, 1, 3)),
    "lstm cells": _fed,
    "lstm cells, gates i g f o": lambda: ordered_lstm((0, 2, 1, 3), fed=True),
    "lstm cells with layer norm": _normed,
    "gru layer": lambda: _unrolled(mx.rnn.GRUCell(SIZE), found={"gru_layer": 1}),
    "gru layer, states given": lambda: _given(mx.rnn.GRUCell(SIZE, prefix="g_"), found={"gru_layer": 1}),
    "gru layers": lambda: _stacked(mx.rnn.GRUCell, "gru_layer"),
    "gru layers, both ways": lambda: _both_ways(mx.rnn.GRUCell, "gru_layer"),
    "gru cells, gates z r n": lambda: ordered_gru((1, 0, 2)),
    "gru cells": lambda: _fed(mx.rnn.GRUCell, "gru_cell"),
    "rnn layer": lambda: _unrolled(mx.rnn.RNNCell(SIZE), found={"rnn_layer": 1}),
    "rnn layer of relu": lambda: _unrolled(mx.rnn.RNNCell(SIZE, activation="relu"), "TNC", {"rnn_layer": 1}),
    "rnn layer, states given": lambda: _given(mx.rnn.RNNCell(SIZE, prefix="r_"), found={"rnn_layer": 1}),
    "rnn layers": lambda: _stacked(mx.rnn.RNNCell, "rnn_layer"),
    "rnn layers, both ways": lambda: _both_ways(mx.rnn.RNNCell, "rnn_layer"),
    "gluon lstm cells": lambda: _gluon_cell(mx.gluon.rnn.LSTMCell, {"lstm_layer": 1}),
    "gluon gru cells": lambda: _gluon_cell(mx.gluon.rnn.GRUCell, {"gru_layer": 1}),
    "gluon rnn cells": lambda: _gluon_cell(mx.gluon.rnn.RNNCell, {"rnn_layer": 1}),
    "gluon lstm": lambda: _gluon_layers(1, False),
    "gluon lstm, two layers": lambda: _gluon_layers(2, False),
    "gluon lstm, both ways": lambda: _gluon_layers(1, True),
    "gluon lstm, two layers both ways": lambda: _gluon_layers(2, True),
    "gluon gru": lambda: _gluon_layers(1, False, mx.gluon.rnn.GRU),
    "gluon gru, two layers both ways": lambda: _gluon_layers(2, True, mx.gluon.rnn.GRU),
    "gluon rnn": lambda: _gluon_layers(1, False, mx.gluon.rnn.RNN),
    "gluon rnn, two layers both ways": lambda: _gluon_layers(2, True, mx.gluon.rnn.RNN, activation="tanh"),
    "gluon lstm, dropout between layers": lambda: _gluon_layers(2, False, dropout=0.4),
    "gluon gru, three layers both ways, dropout between": lambda: _gluon_layers(3, True, mx.gluon.rnn.GRU, dropout=0.4),
    "packed lstm": lambda: _packed(1),
    "packed rnn, two layers, dropout between": lambda: _packed(2, "rnn_relu", dropout=0.4),
    "packed lstm, two layers": lambda: _packed(2),
    "packed gru, two layers": lambda: _packed(2, "gru"),
    "packed rnn, two layers": lambda: _packed(2, "rnn_tanh"),
    "attention": lambda: attention(norm=False),
    "attention with layer norm": lambda: attention(norm=True),
    "attention by hand": _attention_by_hand,
    "attention of a decoder": decoder,
    **ATTENTIONS,
    **RESET_GRUS,
    **FORMS,
    "layer norm": _norm,
    "reversal": lambda: _reversed(with_lengths=False),
    "reversal with lengths": lambda: _reversed(with_lengths=True),
    "biased": _biased,
    "dropout": _dropped,
    "rectified": _rectified,
    "softmax output": _softmax,
    "softmax output, padded": lambda: _softmax(use_ignore=True, ignore_label=3, normalization="valid", grad_scale=2),
    "cross entropy": lambda: _cross_entropy(layer=False),
    "cross entropy of sequences": lambda: _cross_entropy(layer=False, steps=3, kind="int32"),
    "cross entropy, smoothed": lambda: _cross_entropy(layer=False, smooth=True),
    "cross entropy with its layer": lambda: _cross_entropy(layer=True),
    "cross entropy with its layer, smoothed, of sequences": lambda: _cross_entropy(layer=True, smooth=True, steps=2),
    "softmax output, smoothed": lambda: _softmax(smooth_alpha=0.1, normalization="batch"),
}


def values(example: Example) -> dict[str, Any]:
    """The same numbers every time for every array of the symbol."""
    names = example.symbol.list_arguments()
    shapes, _, _ = example.symbol.infer_shape(**example.shapes)
    random = np.random.default_rng(5)
    found = {}
    for name, shape in zip(names, shapes):
        limit = example.integers.get(name)
        drawn = random.normal(0, 0.4, shape) if limit is None else random.integers(0, limit, shape)
        found[name] = mx.nd.array(drawn.astype(np.float32))
    return found


def trained_gluon(
    layers: Callable[[], mx.gluon.HybridBlock],
    static: bool,
    grad_req: str,
    optimize: Callable[[Any], Any] = lambda net: net,
) -> tuple[list[Any], list[Any]]:
    """Losses, gradients and what follows of some (4, 40, 5) inputs through layers of 8 units; and the plans."""
    mx.random.seed(3)
    net = mx.gluon.nn.HybridSequential()
    net.add(layers(), mx.gluon.nn.Dense(3, flatten=False, in_units=8))
    net.initialize(mx.init.Uniform(0.3))
    net.collect_params().setattr("grad_req", grad_req)
    net = optimize(net)
    net.hybridize(static_alloc=static)
    data = mx.nd.random.normal(shape=(4, 40, 5))
    data.attach_grad(grad_req)
    for _ in range(2):
        with mx.autograd.record():
            loss = (net(data) ** 2).sum()
        loss.backward()
    gradients = [data.grad.asnumpy(), *(parameter.grad().asnumpy() for parameter in net.collect_params().values())]
    plans = list(getattr(net._cached_op, "plans", {}).values())
    return [loss.asnumpy(), *gradients, net(data).asnumpy()], plans
