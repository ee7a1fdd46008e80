"""Recurrent cells and layers."""

from __future__ import annotations

from itertools import permutations
from typing import Sequence

import numpy as np

from tests.support.reference.arrays import (
    Array,
    Arrays,
    Maybe,
    double,
    normalised,
    or_zeros,
    sigmoid,
    sigmoid_slope,
    tanh_slope,
)
from tests.support.reference.rows import layer_norm_grad


def _places(gates: int, order: float) -> tuple[int, ...]:
    """The position of each gate: ``order`` is the number of the permutation, lexicographically."""
    return list(permutations(range(gates)))[int(order)]


def _split(array: Array, gates: int, order: float) -> list[Array]:
    parts = np.split(array, gates, axis=-1)
    return [parts[place] for place in _places(gates, order)]


def _joined(arrays: Sequence[Array], order: float) -> Array:
    places = _places(len(arrays), order)
    return np.concatenate([arrays[places.index(part)] for part in range(len(arrays))], axis=-1)


def lstm_cell(pre: Array, c: Array, *, order: float = 0) -> Arrays:
    """One step of an LSTM after its matrix products (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    pre [B,4H] holds the gates i, f, g, o before their non-linearities, or in another ``order``, c [B,H] the cell.
    Returns h and the next cell.
    """
    pre, c = double(pre, c)
    i, f, g, o = _split(pre, 4, order)
    c_next = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c_next), c_next


def lstm_cell_grad(
    dh: Maybe, dc_next: Maybe, pre: Array, c: Array, h: Maybe = None, c_next: Maybe = None, *, order: float = 0
) -> Arrays:
    """The gradients of pre and c."""
    pre, c = double(pre, c)
    dh, dc_next = or_zeros(dh, c), or_zeros(dc_next, c)
    i, f, g, o = _split(pre, 4, order)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    dcell = dc_next + dh * sigmoid(o) * tanh_slope(cell)
    gates = (*_input_gradients(dcell, i, f, g, c), dh * np.tanh(cell) * sigmoid_slope(o))
    return _joined(gates, order), dcell * sigmoid(f)


def _input_gradients(dcell: Array, i: Array, f: Array, g: Array, c: Array) -> Arrays:
    """The gradients of the gates that make a cell, in front of their non-linearities, from that of the cell."""
    return dcell * np.tanh(g) * sigmoid_slope(i), dcell * c * sigmoid_slope(f), dcell * sigmoid(i) * tanh_slope(g)


def lstm_norm_cell(pre: Array, c: Array, gamma: Array, beta: Array, *, eps: float, order: float = 0) -> Arrays:
    """`lstm_cell` with a layer norm of the next cell in front of its tanh (Ba et al. 2016): h = o tanh(norm(c'))."""
    pre, c = double(pre, c)
    i, f, g, o = _split(pre, 4, order)
    c_next = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    normed = normalised(c_next, eps)[0] * np.asarray(gamma, np.float64) + np.asarray(beta, np.float64)
    return sigmoid(o) * np.tanh(normed), c_next


def lstm_norm_cell_grad(
    dh: Maybe, dc_next: Maybe, pre: Array, c: Array, gamma: Array, beta: Array, h: Maybe = None, c_next: Maybe = None,
    *, eps: float, order: float = 0,
) -> Arrays:  # fmt: skip
    """The gradients of pre, c, gamma and beta."""
    pre, c, gamma, beta = double(pre, c, gamma, beta)
    dh, dc_next = or_zeros(dh, c), or_zeros(dc_next, c)
    i, f, g, o = _split(pre, 4, order)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    normed = normalised(cell, eps)[0] * gamma + beta
    of_norm, dgamma, dbeta = layer_norm_grad(dh * sigmoid(o) * tanh_slope(normed), cell, gamma, beta, None, eps=eps)
    dcell = dc_next + of_norm
    gates = (*_input_gradients(dcell, i, f, g, c), dh * np.tanh(normed) * sigmoid_slope(o))
    return _joined(gates, order), dcell * sigmoid(f), dgamma, dbeta


def gru_cell(x: Array, s: Array, h: Array, *, order: float = 0) -> Arrays:
    """One step of a GRU after its matrix products, the reset gate after the product (cuDNN's and MXNet's variant of
    Cho et al. 2014).

    x [B,3H] comes from the input, s [B,3H] from the state, both as r, z, n, or in another ``order``; h [B,H] is the
    state. Returns the next one.
    """
    x, s, h = double(x, s, h)
    (x_r, x_z, x_n), (s_r, s_z, s_n) = _split(x, 3, order), _split(s, 3, order)
    z = x_z + s_z
    n = np.tanh(x_n + sigmoid(x_r + s_r) * s_n)
    return (sigmoid(-z) * n + sigmoid(z) * h,)


def gru_cell_grad(dh_next: Maybe, x: Array, s: Array, h: Array, h_next: Maybe = None, *, order: float = 0) -> Arrays:
    """The gradients of x, s and h."""
    x, s, h = double(x, s, h)
    dh_next = or_zeros(dh_next, h)
    (x_r, x_z, x_n), (s_r, s_z, s_n) = _split(x, 3, order), _split(s, 3, order)
    r, z = x_r + s_r, x_z + s_z
    n = x_n + sigmoid(r) * s_n
    d_n = dh_next * sigmoid(-z) * tanh_slope(n)
    d_z = dh_next * (h - np.tanh(n)) * sigmoid_slope(z)
    d_r = d_n * s_n * sigmoid_slope(r)
    of_s = d_r, d_z, d_n * sigmoid(r)
    return _joined((d_r, d_z, d_n), order), _joined(of_s, order), dh_next * sigmoid(z)


def gru_reset(pre: Array, h: Array, *, keeps: float, order: float = 0) -> Arrays:
    """A step of a GRU up to its second product, the reset gate in front of it (Cho et al. 2014).

    pre [B,2H] holds r and z before their non-linearities, or in another ``order``, h [B,H] the state. Returns the
    input of the product, and the weight of the new state in the next one: z, or 1 - z if it ``keeps`` the old one.
    """
    pre, h = double(pre, h)
    r, z = _split(pre, 2, order)
    return sigmoid(r) * h, sigmoid(-z if keeps else z)


def gru_reset_grad(
    drh: Maybe, du: Maybe, pre: Array, h: Array, rh: Maybe = None, u: Maybe = None, *, keeps: float, order: float = 0
) -> Arrays:
    """The gradients of pre and h."""
    pre, h = double(pre, h)
    drh, du = or_zeros(drh, h), or_zeros(du, h)
    r, z = _split(pre, 2, order)
    d_z = (-du if keeps else du) * sigmoid_slope(z)
    return _joined((drh * h * sigmoid_slope(r), d_z), order), drh * sigmoid(r)


def gru_mix(h: Array, u: Array, pre: Array) -> Arrays:
    """The rest of the step: the next state from the state h, the weight u of the new one, and its pre."""
    h, u, pre = double(h, u, pre)
    return ((1 - u) * h + u * np.tanh(pre),)


def gru_mix_grad(dh_next: Maybe, h: Array, u: Array, pre: Array, h_next: Maybe = None) -> Arrays:
    """The gradients of h, u and pre."""
    h, u, pre = double(h, u, pre)
    dh_next = or_zeros(dh_next, h)
    return dh_next * (1 - u), dh_next * (np.tanh(pre) - h), dh_next * u * tanh_slope(pre)


def _steps(count: int, reverse: float) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def lstm_layer(
    x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array, c0: Array, *, reverse: float = 0, order: float = 0
) -> Arrays:
    """An LSTM over x [T,B,I], from T-1 down to 0 where ``reverse`` is 1. Returns y [T,B,H], hT, cT and pre [T,B,4H]."""
    x, wi, bi, wh, bh, h, c = double(x, wi, bi, wh, bh, h0, c0)
    pre = x @ wi.T + bi + bh
    y = np.zeros((*x.shape[:2], h.shape[-1]))
    for t in _steps(len(x), reverse):
        pre[t] += h @ wh.T
        h, c = lstm_cell(pre[t], c, order=order)
        y[t] = h
    return y, h, c, pre


def lstm_layer_grad(
    dy: Maybe, dh_last: Maybe, dc_last: Maybe, dpre: Maybe,
    x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array, c0: Array,
    y: Maybe = None, h_last: Maybe = None, c_last: Maybe = None, pre: Maybe = None, *, reverse: float = 0,
    order: float = 0,
) -> Arrays:  # fmt: skip
    """The gradients of the seven inputs; none flows into ``pre`` from outside, and ``dpre`` is not read."""
    x, wi, bi, wh, bh, h0, c0 = double(x, wi, bi, wh, bh, h0, c0)
    y, _, _, pre = double(*lstm_layer(x, wi, bi, wh, bh, h0, c0, reverse=reverse, order=order))
    steps = list(_steps(len(x), reverse))
    cells, hiddens = [c0], [h0]  # before each step
    for t in steps:
        hiddens.append(y[t])
        cells.append(lstm_cell(pre[t], cells[-1], order=order)[1])  # type: ignore[arg-type]
    dy, dh, dc = or_zeros(dy, y), or_zeros(dh_last, h0), or_zeros(dc_last, c0)
    dgates, dwh = np.zeros(pre.shape), np.zeros(wh.shape)
    for number in range(len(steps) - 1, -1, -1):
        t = steps[number]
        dgates[t], dc = lstm_cell_grad(dh + dy[t], dc, pre[t], cells[number], order=order)  # type: ignore[assignment]
        dwh += dgates[t].T @ hiddens[number]
        dh = dgates[t] @ wh
    db = dgates.sum((0, 1))
    return dgates @ wi, np.einsum("tbg,tbi->gi", dgates, x), db, dwh, db, dh, dc


def gru_layer(x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array, *, reverse: float = 0) -> Arrays:
    """A GRU over x [T,B,I], as `lstm_layer`. Returns y [T,B,H], hT and pre [T,B,3H]: x_r + s_r, x_z + s_z and s_n."""
    x, wi, bi, wh, bh, h = double(x, wi, bi, wh, bh, h0)
    of_input, hidden = x @ wi.T + bi, h.shape[-1]
    y, pre = np.zeros((*x.shape[:2], hidden)), np.zeros(of_input.shape)
    for t in _steps(len(x), reverse):
        s = h @ wh.T + bh
        (h,) = double(*gru_cell(of_input[t], s, h))
        y[t], pre[t] = h, s
        pre[t, :, : 2 * hidden] += of_input[t, :, : 2 * hidden]
    return y, h, pre


def gru_layer_grad(
    dy: Maybe, dh_last: Maybe, dpre: Maybe,
    x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array,
    y: Maybe = None, h_last: Maybe = None, pre: Maybe = None, *, reverse: float = 0,
) -> Arrays:  # fmt: skip
    """The gradients of the six inputs; none flows into ``pre`` from outside, and ``dpre`` is not read."""
    x, wi, bi, wh, bh, h0 = double(x, wi, bi, wh, bh, h0)
    (y,) = double(gru_layer(x, wi, bi, wh, bh, h0, reverse=reverse)[0])
    of_input, before = x @ wi.T + bi, _before(y, h0, reverse)
    dy, dh = or_zeros(dy, y), or_zeros(dh_last, h0)
    of_x, of_s = np.zeros(of_input.shape), np.zeros(of_input.shape)
    for t in reversed(_steps(len(x), reverse)):
        of_x[t], of_s[t], past = double(*gru_cell_grad(dh + dy[t], of_input[t], before[t] @ wh.T + bh, before[t]))
        dh = of_s[t] @ wh + past
    return *_products(of_x, x, wi), np.einsum("tbg,tbh->gh", of_s, before), of_s.sum((0, 1)), dh


def rnn_layer(
    x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array, *, act: float = 2, reverse: float = 0
) -> Arrays:
    """A vanilla RNN over x [T,B,I], as `lstm_layer` (Elman 1990). ``act`` is 0 for relu, 2 for tanh.

    Returns y [T,B,H] and hT.
    """
    x, wi, bi, wh, bh, h = double(x, wi, bi, wh, bh, h0)
    y = x @ wi.T + bi + bh
    for t in _steps(len(x), reverse):
        y[t] += h @ wh.T
        h = y[t] = np.tanh(y[t]) if act else np.maximum(y[t], 0)
    return y, h


def rnn_layer_grad(
    dy: Maybe, dh_last: Maybe,
    x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array,
    y: Array, h_last: Maybe = None, *, act: float = 2, reverse: float = 0,
) -> Arrays:  # fmt: skip
    """The gradients of the six inputs, from the outputs of the steps, as of `bias_act`."""
    x, wi, wh, h0, y = double(x, wi, wh, h0, y)
    before = _before(y, h0, reverse)
    dy, dh = or_zeros(dy, y), or_zeros(dh_last, h0)
    dsums = np.zeros(y.shape)
    for t in reversed(_steps(len(x), reverse)):
        dsums[t] = (dh + dy[t]) * (1 - y[t] ** 2 if act else y[t] > 0)
        dh = dsums[t] @ wh
    return *_products(dsums, x, wi), np.einsum("tbg,tbh->gh", dsums, before), dsums.sum((0, 1)), dh


def _before(y: Array, h0: Array, reverse: float) -> Array:
    """The state before each step, [T,B,H]."""
    states = np.zeros(y.shape)
    steps = _steps(len(y), reverse)
    for number, t in enumerate(steps):
        states[t] = y[steps[number - 1]] if number else h0
    return states


def _products(dgates: Array, x: Array, wi: Array) -> Arrays:
    """The gradients of x, wi and bi, from those of the sums [T,B,G] that they are part of."""
    return dgates @ wi, np.einsum("tbg,tbi->gi", dgates, x), dgates.sum((0, 1))
