"""Cells by their formulas, one element at a time, and layers as their cells; `test_reference` has the gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.reference.cells import (
    gru_cell,
    gru_mix,
    gru_reset,
    lstm_cell,
    lstm_layer,
    lstm_layer_grad,
    lstm_norm_cell,
)

GENERATOR = np.random.default_rng(1)
B, T, SIZE = 2, 4, 3


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def draw(*shape: int) -> Any:
    return GENERATOR.normal(size=shape)


def test_an_lstm_cell() -> None:
    pre, c = draw(B, 4 * SIZE), draw(B, SIZE)
    h, c_next = lstm_cell(pre, c)
    for b, k in np.ndindex(B, SIZE):
        i, f, g, o = (float(pre[b, k + part * SIZE]) for part in range(4))
        cell = s(f) * c[b, k] + s(i) * math.tanh(g)
        assert c_next[b, k] == pytest.approx(cell)
        assert h[b, k] == pytest.approx(s(o) * math.tanh(cell))


def test_a_cell_with_a_norm_has_the_norm_in_front_of_its_tanh_alone() -> None:
    pre, c, gamma, beta = draw(B, 4 * SIZE), draw(B, SIZE), draw(SIZE), draw(SIZE)
    h, c_next = lstm_norm_cell(pre, c, gamma, beta, eps=1e-3)
    plain = lstm_cell(pre, c)[1]
    np.testing.assert_allclose(c_next, plain)
    norm = (plain - plain.mean(-1, keepdims=True)) / np.sqrt(plain.var(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(h, np.tanh(norm * gamma + beta) / (1 + np.exp(-pre[:, 3 * SIZE :])))


def test_a_gru_cell() -> None:
    x, state, h = draw(B, 3 * SIZE), draw(B, 3 * SIZE), draw(B, SIZE)
    (found,) = gru_cell(x, state, h)
    for b, k in np.ndindex(B, SIZE):
        (xr, xz, xn), (sr, sz, sn) = ([float(each[b, k + part * SIZE]) for part in range(3)] for each in (x, state))
        new = math.tanh(xn + s(xr + sr) * sn)
        assert found[b, k] == pytest.approx((1 - s(xz + sz)) * new + s(xz + sz) * h[b, k])


@pytest.mark.parametrize("keeps", [0, 1])
def test_a_gru_cell_with_its_reset_gate_in_front_of_the_product(keeps: int) -> None:
    pre, h, candidate = draw(B, 2 * SIZE), draw(B, SIZE), draw(B, SIZE)
    product, u = gru_reset(pre, h, keeps=keeps)
    for turned, same in zip(gru_reset(np.roll(pre, SIZE, axis=1), h, keeps=keeps, order=1), (product, u)):
        np.testing.assert_array_equal(turned, same)
    (found,) = gru_mix(h, u, candidate)
    for b, k in np.ndindex(B, SIZE):
        r, z = (s(float(pre[b, k + part * SIZE])) for part in range(2))
        new, old = math.tanh(candidate[b, k]), h[b, k]
        assert product[b, k] == pytest.approx(r * old)
        assert found[b, k] == pytest.approx((1 - z) * new + z * old if keeps else old + z * (new - old))


@pytest.mark.parametrize("reverse", [0, 1])
def test_a_layer_is_its_cells_one_after_the_other(reverse: int) -> None:
    x, wi, bi, wh, bh = draw(T, B, 5), draw(4 * SIZE, 5), draw(4 * SIZE), draw(4 * SIZE, SIZE), draw(4 * SIZE)
    h, c = h0, c0 = draw(B, SIZE), draw(B, SIZE)
    y, last_h, last_c, pre = lstm_layer(x, wi, bi, wh, bh, h0, c0, reverse=reverse)
    for t in range(T)[::-1] if reverse else range(T):
        gates = x[t] @ wi.T + bi + h @ wh.T + bh
        h, c = lstm_cell(gates, c)
        np.testing.assert_allclose(pre[t], gates)
        np.testing.assert_allclose(y[t], h)
    np.testing.assert_allclose(last_h, h)
    np.testing.assert_allclose(last_c, c)


def test_absent_gradients_count_as_zeros() -> None:
    given = draw(T, B, 5), draw(4 * SIZE, 5), draw(4 * SIZE), draw(4 * SIZE, SIZE), draw(4 * SIZE)
    states = draw(B, SIZE), draw(B, SIZE)
    zeros = np.zeros((T, B, SIZE)), np.zeros((B, SIZE)), np.zeros((B, SIZE))
    absent = lstm_layer_grad(None, None, None, None, *given, *states)
    assert all(np.array_equal(a, b) for a, b in zip(absent, lstm_layer_grad(*zeros, None, *given, *states)))
    assert not any(np.any(each) for each in absent)
