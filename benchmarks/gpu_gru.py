"""A training step of a GRU layer as MXNet runs it with echo: products by cuBLAS, cells by echo's kernel."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.gpu_sizes import Recurrent
from tests.support.kernel_calls import WRITE


class GruStep:
    """Forward and backward of a layer with as many inputs as units; gradients of everything.

    Called, it returns the outputs, and the gradients of inputs, first state, and weights as torch orders them.
    """

    def __init__(self, device: Any, size: Recurrent, dtype: str) -> None:
        self.device, (hidden, batch, steps, _) = device, size
        spread = 1 / math.sqrt(hidden)
        self.x = device.random((steps, batch, hidden), dtype)
        self.wi, self.wh = (device.random((3 * hidden, hidden), dtype, spread) for _ in "ih")
        self.bi, self.bh = (device.random((3 * hidden,), dtype, spread) for _ in "ih")
        self.heads = [device.random((steps, batch, hidden), dtype), device.random((batch, hidden), dtype)]
        gates = (steps, batch, 3 * hidden)
        self.from_x, self.from_h, self.d_from_x, self.d_from_h = (device.empty(gates, dtype) for _ in range(4))
        self.states = device.empty((steps + 1, batch, hidden), dtype)
        self.states[0] = device.random((batch, hidden), dtype)
        self.d_state, self.d_before = (device.empty((batch, hidden), dtype) for _ in range(2))
        self._forward = [self._cell(t) for t in range(steps)]
        self._backward = [self._gradient(t) for t in range(steps)]

    def _tensors(self, t: int) -> list[Any]:
        return [self.from_x[t], self.from_h[t], self.states[t]]

    def _cell(self, t: int) -> Any:
        return self.device.prepare("gru_cell", self._tensors(t), [self.states[t + 1]], [WRITE], [])

    def _gradient(self, t: int) -> Any:
        inputs = [self.d_state, *self._tensors(t), self.states[t + 1]]
        gradients = [self.d_from_x[t], self.d_from_h[t], self.d_before]
        return self.device.prepare("gru_cell_grad", inputs, gradients, [WRITE] * 3, [])

    def __call__(self) -> list[Any]:
        torch, (steps, batch, hidden) = self.device.torch, self.x.shape
        flat = self.x.view(-1, hidden)
        torch.addmm(self.bi, flat, self.wi.t(), out=self.from_x.view(-1, 3 * hidden))
        for t in range(steps):
            torch.addmm(self.bh, self.states[t], self.wh.t(), out=self.from_h[t])
            self._forward[t]()
        torch.add(self.heads[0][-1], self.heads[1], out=self.d_state)
        for t in range(steps - 1, -1, -1):
            self._backward[t]()
            torch.addmm(self.d_before, self.d_from_h[t], self.wh, out=self.d_state)
            if t:
                self.d_state.add_(self.heads[0][t - 1])
        d_x, d_h = self.d_from_x.view(-1, 3 * hidden), self.d_from_h.view(-1, 3 * hidden)
        weights = [d_x.t() @ flat, d_h.t() @ self.states[:-1].reshape(-1, hidden), d_x.sum(0), d_h.sum(0)]
        return [self.states[1:], (d_x @ self.wi).view(steps, batch, hidden), self.d_state, *weights]
