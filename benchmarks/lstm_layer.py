"""What does the kernel of a whole LSTM layer cost, next to MXNet's own fused operator (RNN, by oneDNN)?

    python -m benchmarks.lstm_layer [--rounds 15]

Time: a training step of one layer, forward and backward with all gradients, float32, one thread. Both sides live in
one process on the same values and take steps in turn; a row holds medians, and the median of the ratios. Memory: by how
much the resident memory of a fresh process grows at most from before it makes the layer's arrays (inputs, outputs,
gradients, what each side needs between and within the passes) until after three steps. Writes results/lstm_layer.json.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import numpy as np

from benchmarks.record import apart, parser, save
from echo.system.process import resident
from tests.support.kernel_calls import call, workspace_bytes

# steps, batch, inputs, hidden units
SHAPES = [(50, 64, 512, 512), (50, 16, 512, 512), (50, 128, 512, 512), (35, 20, 650, 650), (50, 1, 512, 512)]

Shape = tuple[int, int, int, int]
Step = Callable[[], None]


def input_shapes(shape: Shape) -> list[tuple[int, ...]]:
    """The shapes of the kernel's inputs: x, wi, bi, wh, bh, h0, c0."""
    T, B, inputs, H = shape
    return [(T, B, inputs), (4 * H, inputs), (4 * H,), (4 * H, H), (4 * H,), (B, H), (B, H)]


class Kernel:
    """The layer by echo's kernel, on NumPy arrays."""

    def __init__(self, shape: Shape) -> None:
        T, B, _, H = shape
        self.inputs = [np.full(each, 0.01, np.float32) for each in input_shapes(shape)]
        self.outputs = [np.zeros(each, np.float32) for each in ((T, B, H), (B, H), (B, H), (T, B, 4 * H))]
        self.heads = [np.full(array.shape, 0.01, np.float32) for array in self.outputs[:3]]
        self.gradients = [np.zeros_like(array) for array in self.inputs]
        self._backward = [*self.heads, None, *self.inputs, *self.outputs]
        needed = max(
            workspace_bytes("lstm_layer", self.inputs, self.outputs, params=[0]),
            workspace_bytes("lstm_layer_grad", self._backward, self.gradients, params=[0]),
        )
        room = np.empty(needed + 64, np.uint8)
        self._workspace = room[-room.ctypes.data % 64 :][:needed]

    def step(self) -> None:
        """One forward and backward pass."""
        call("lstm_layer", self.inputs, self.outputs, params=[0], workspace=self._workspace)
        call("lstm_layer_grad", self._backward, self.gradients, params=[0], workspace=self._workspace)

    def results(self) -> list[Any]:
        """y, and the gradients of x and of the weights in the order of `Operator`."""
        _, dwi, dbi, dwh, dbh, _, _ = self.gradients
        packed = np.concatenate([array.ravel() for array in (dwi, dwh, dbi, dbh)])
        return [self.outputs[0], self.gradients[0], packed]


class Operator:
    """The layer by MXNet's RNN, in an executor."""

    def __init__(self, shape: Shape) -> None:
        T, B, inputs, H = shape
        x, weights, h, c = (mx.sym.Variable(name) for name in ("x", "weights", "h", "c"))
        symbol = mx.sym.RNN(x, weights, h, c, mode="lstm", state_size=H, num_layers=1, state_outputs=True)
        states = {"h": (1, B, H), "c": (1, B, H)}
        self.executor = symbol.simple_bind(mx.cpu(), x=(T, B, inputs), weights=(4 * H * (inputs + H + 2),), **states)
        for array in self.executor.arg_arrays:
            array[:] = 0.01
        self.heads = [mx.nd.full(array.shape, 0.01) for array in self.executor.outputs]

    def step(self) -> None:
        """One forward and backward pass."""
        self.executor.forward(is_train=True)
        self.executor.backward(self.heads)
        mx.nd.waitall()

    def results(self) -> list[Any]:
        """y, and the gradients of x and of the weights."""
        gradients = self.executor.grad_dict
        return [array.asnumpy() for array in (self.executor.outputs[0], gradients["x"], gradients["weights"])]


SIDES: dict[str, Callable[[Shape], Any]] = {"kernel": Kernel, "operator": Operator}


def _shape(text: str) -> Shape:
    T, B, inputs, H = (int(part) for part in text.split("x"))
    return T, B, inputs, H


def _give_same_values(kernel: Kernel, operator: Operator, shape: Shape) -> None:
    rng = np.random.default_rng(0)
    for array in kernel.inputs:
        array[:] = rng.uniform(-0.05, 0.05, array.shape)
    x, wi, bi, wh, bh, h, c = kernel.inputs
    operator.executor.arg_dict["x"][:] = x
    operator.executor.arg_dict["weights"][:] = np.concatenate([array.ravel() for array in (wi, wh, bi, bh)])
    operator.executor.arg_dict["h"][:] = h[None]
    operator.executor.arg_dict["c"][:] = c[None]
    for mine, other in zip(kernel.heads, operator.heads):
        mine[:] = rng.standard_normal(mine.shape)
        other[:] = mine.reshape(other.shape)


def _seconds(step: Step) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def times(text: str, rounds: str) -> dict[str, float]:
    """Times of a step of both sides, in turn; their results must agree."""
    shape = _shape(text)
    kernel, operator = Kernel(shape), Operator(shape)
    _give_same_values(kernel, operator, shape)
    kernel.step()
    operator.step()
    for mine, other in zip(kernel.results(), operator.results()):
        assert np.abs(mine - other).max() <= 1e-5 * np.abs(other).max(), "the two sides disagree"
    pairs = []
    for number in range(int(rounds)):
        order = (kernel, operator) if number % 2 else (operator, kernel)
        found = {side: _seconds(side.step) for side in order}
        pairs.append((found[kernel], found[operator]))
    T, B, inputs, H = shape
    mine = statistics.median(pair[0] for pair in pairs)
    return {
        "kernel_ms": 1000 * mine,
        "operator_ms": 1000 * statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(one / other for one, other in pairs),
        "quickest_ratio": min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs),
        "kernel_gflops": 3 * 2 * T * B * 4 * H * (inputs + H) / mine / 1e9,
    }


def growth(side: str, text: str) -> float:
    """MB by which this process grows at most while it makes a layer and takes three steps."""
    mx.nd.waitall()
    mx.nd.ones((2, 2)).asnumpy()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = resident("VmRSS")
    layer = SIDES[side](_shape(text))
    for _ in range(3):
        layer.step()
    return (resident("VmHWM") - before) / 1e6


def main() -> None:
    """Measures all shapes, each in processes of its own."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15)
    arguments = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for shape in SHAPES:
        text = "x".join(map(str, shape))
        row: dict[str, Any] = dict(zip(("T", "B", "I", "H"), shape), rounds=arguments.rounds)
        row.update(apart("lstm_layer", "times", text, str(arguments.rounds)))
        for side in SIDES:
            row[f"{side}_mb"] = apart("lstm_layer", "growth", side, text)
        rows.append(row)
        print(
            f"{text}: {row['kernel_ms']:.0f} ms, {row['ratio']:.2f} of the operator's {row['operator_ms']:.0f}; "
            f"{row['kernel_mb']:.0f} MB, operator {row['operator_mb']:.0f}",
            flush=True,
        )
    print("written:", save("lstm_layer", rows).name)


if __name__ == "__main__":
    main()
