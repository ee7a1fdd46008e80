"""Times of the CUDA kernels: sections of rows for the results, each within seconds of its own."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from benchmarks.gpu_cases import NO_GRADIENT, OUTPUT_TYPES
from benchmarks.gpu_library import using_library
from benchmarks.gpu_torch import UnfusedLstm, cudnn_step, forward_of, step_of
from echo.kernels.library import SKIP, WRITE

Row = dict[str, Any]


@dataclass
class Clock:
    """The seconds of a section, from its first question on."""

    seconds: float
    left_out: int = 0
    started: float = field(default_factory=time.monotonic)

    def take(self, items: Iterable[Any]) -> Iterator[Any]:
        """Items until the time is over; the rest are counted."""
        for item in items:
            if time.monotonic() - self.started > self.seconds:
                self.left_out += 1
            else:
                yield item


@dataclass(frozen=True)
class Sizes:
    """What is timed: as large as a GPU's caches ask for, or tiny to try the script out."""

    rows: int = 16384
    wide: int = 1024
    layers: tuple[tuple[int, int, int], ...] = tuple(
        (hidden, batch, steps)
        for batch, hidden, steps in itertools.product((64, 32, 128, 16, 256), (512, 1024, 256, 650, 1500), (50, 35))
    )
    routes: tuple[tuple[int, int, int], ...] = tuple(itertools.product((256, 512, 1024), (16, 64, 256), (50,)))
    repetitions: int = 20
    attentions: tuple[tuple[int, int, int], ...] = ((512, 64, 64), (512, 256, 64), (64, 1024, 64), (64, 50, 512))


def copy_bandwidth(device: Any, sizes: Sizes) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source = device.random((sizes.rows * 4, sizes.wide), "float32")
    target = device.empty(tuple(source.shape), "float32")
    return 2 * source.numel() * 4 / float(device.seconds(lambda: target.copy_(source)))


# inputs of NAME_grad that are read, beside the gradients: positions among NAME's inputs, then outputs
READS = {
    "lstm_cell": (0, 1), "gru_cell": (0, 1, 2), "mlp_score": (0, 1, 2, 3, 4), "layer_norm": (0, 1), "bias_act": (2,),
    "sequence_reverse": (1,), "dropout": (2,), "relu": (2,),
}  # fmt: skip


def bound_by_memory(device: Any, sizes: Sizes, dtype: str) -> list[tuple[str, list[Any], dict[str, float]]]:
    """Kernels, inputs and parameters; an input alone is larger than the caches."""
    rows, wide = sizes.rows, sizes.wide
    steps, batch = 64, max(1, rows // 32)

    def draw(*shapes: tuple[int, ...]) -> list[Any]:
        return [device.random(shape, dtype, 1 / math.sqrt(wide) if len(shape) == 1 else 1.0) for shape in shapes]

    lengths = device.torch.randint(0, steps + 1, (batch,), device=device.where, dtype=device.torch.int32)
    score = draw((batch, steps, wide), (batch, wide), (wide,), (wide,), (wide,))
    return [
        ("lstm_cell", draw((rows, 4 * wide), (rows, wide)), {}),
        ("gru_cell", draw((rows, 3 * wide), (rows, 3 * wide), (rows, wide)), {}),
        ("mlp_score", [*score[:3], None, None], {"eps": 1e-5}),
        ("mlp_score", score, {"eps": 1e-5}),
        ("layer_norm", draw((4 * rows, wide), (wide,), (wide,)), {"eps": 1e-5}),
        ("bias_act", draw((4 * rows, wide), (wide,)), {"act": 2.0}),
        ("sequence_reverse", [*draw((steps, batch, wide)), lengths], {}),
        ("dropout", [device.random((4 * rows * wide,), dtype)], {"keep": 0.7, "seed": 1.0, "offset": 0.0}),
        ("relu", [device.random((4 * rows * wide,), dtype)], {}),
    ]


def outputs_of(device: Any, kernel: str, inputs: list[Any]) -> list[Any]:
    """Memory for a kernel's outputs."""
    first, dtype = inputs[0], str(inputs[0].dtype).rpartition(".")[2]
    shapes = [tuple(first.shape)]
    if kernel in ("lstm_cell", "gru_cell"):
        shapes = [tuple(inputs[-1].shape)] * (2 if kernel == "lstm_cell" else 1)
    elif kernel == "mlp_score":
        shapes = [tuple(first.shape[:2])]
    elif kernel in ("dropout", "relu"):
        shapes.append(((first.numel() + 7) // 8,))
    elif kernel == "attention":
        shapes = [(*first.shape[:2], inputs[2].shape[2]), tuple(first.shape[:2])]
    return [device.empty(shape, OUTPUT_TYPES.get((kernel, i), dtype)) for i, shape in enumerate(shapes)]


def ours(
    device: Any, kernel: str, inputs: list[Any], outputs: list[Any], heads: list[Any], params: dict[str, float]
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A kernel and its gradient, all floating gradients."""
    values = list(params.values())
    run = device.prepare(kernel, inputs, outputs, [WRITE] * len(outputs), values)
    run()
    gradients = [device.torch.empty_like(x) if x is not None and x.is_floating_point() else None for x in inputs]
    reqs = [SKIP if gradient is None else WRITE for gradient in gradients]
    return run, device.prepare(kernel + "_grad", [*heads, *inputs, *outputs], gradients, reqs, values)


def _bytes(arrays: Iterable[Any]) -> int:
    return sum(array.numel() * array.element_size() for array in arrays if array is not None)


def _timed(device: Any, make: Callable[..., Callable[[], Any]], *arguments: Any) -> float | str:
    """Seconds of what ``make`` makes; or why there are none: what others lack here says nothing of the kernels."""
    try:
        return float(device.seconds(make(*arguments), limit=0.5))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def _named(kernel: str, inputs: list[Any]) -> str:
    return kernel + (" with norm" if kernel == "mlp_score" and inputs[3] is not None else "")


def _heads(device: Any, kernel: str, outputs: list[Any], dtype: str) -> list[Any]:
    """Random gradients of the outputs, None where there are none."""
    without = NO_GRADIENT.get(kernel, ())
    return [None if i in without else device.random(tuple(array.shape), dtype) for i, array in enumerate(outputs)]


def _differ(device: Any, kernel: str, forward: Callable[..., Any], inputs: list[Any], output: Any) -> float:
    """How far torch's form of an operator is from ours, as a part of the largest number: is it the same operator?"""
    if kernel == "dropout":
        return 0.0
    with device.torch.no_grad():
        other = forward(*inputs)
    other = other[0] if isinstance(other, tuple) else other
    return float((other.float() - output.float()).abs().max() / output.float().abs().max())


def memory_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Kernels that a device's memory bounds: bytes that have to be moved, against those that a copy would in the time.

    Raises:
        AssertionError: torch computes something else.
    """
    copied = copy_bandwidth(device, sizes)
    cases = ((dtype, case) for dtype in ("float32", "float16") for case in bound_by_memory(device, sizes, dtype))
    for dtype, (kernel, inputs, params) in clock.take(cases):
        outputs = outputs_of(device, kernel, inputs)
        heads = _heads(device, kernel, outputs, dtype)
        run, grad = ours(device, kernel, inputs, outputs, heads, params)
        read = [[*inputs, *outputs][i] for i in READS[kernel]]
        gradients = [x for x in inputs if x is not None and x.is_floating_point()]
        moved = _bytes([*inputs, *outputs]), _bytes([*heads, *read, *gradients])
        seconds = device.seconds(run), device.seconds(grad)
        step, forward, given = _torch_step(device, kernel, inputs, heads, params, compiled=False)
        differ = _differ(device, kernel, forward, given, outputs[0])
        assert differ < (1e-3 if dtype == "float32" else 2e-2), f"{kernel}: torch's is off by {differ}"
        yield {
            "section": "memory", "kernel": _named(kernel, inputs), "dtype": dtype, "copy_gb_s": copied / 1e9,
            "forward_us": seconds[0] * 1e6, "forward_of_copy": moved[0] / seconds[0] / copied,
            "gradient_us": seconds[1] * 1e6, "gradient_of_copy": moved[1] / seconds[1] / copied,
            "step_us": sum(seconds) * 1e6, "torch_step_us": _micro(_timed(device, lambda made: made, step)),
        }  # fmt: skip


def _torch_step(
    device: Any, kernel: str, inputs: list[Any], heads: list[Any], params: dict[str, float], compiled: bool
) -> tuple[Callable[[], Any], Callable[..., Any], list[Any]]:
    """Forward and backward by torch, the forward alone, and its inputs."""
    forward = forward_of(device.torch, kernel, params)
    given = [x if x is None or x.is_floating_point() else x.long() for x in inputs]
    used = device.torch.compile(forward) if compiled else forward
    return step_of(device.torch, used, given, [head for head in heads if head is not None]), forward, given


def compiled_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """The same steps by torch.compile, which takes seconds to compile each."""
    cases = ((dtype, case) for dtype in ("float32", "float16") for case in bound_by_memory(device, sizes, dtype))
    for dtype, (kernel, inputs, params) in clock.take(cases):
        device.torch._dynamo.reset()
        heads = _heads(device, kernel, outputs_of(device, kernel, inputs), dtype)
        seconds = _timed(device, lambda *call: _torch_step(*call)[0], device, kernel, inputs, heads, params, True)
        yield {
            "section": "compiled", "kernel": _named(kernel, inputs), "dtype": dtype, "compiled_step_us": _micro(seconds)
        }  # fmt: skip


def _micro(seconds: float | str) -> float | str:
    return seconds if isinstance(seconds, str) else seconds * 1e6


def attention_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Attention and its gradient against torch's scaled_dot_product_attention, which may use tensor cores."""
    for dtype, (items, steps, depth) in clock.take(itertools.product(("float32", "float16"), sizes.attentions)):
        q, k, v = (device.random((items, steps, depth), dtype) for _ in "qkv")
        params = {"scale": 1 / math.sqrt(depth)}
        inputs, head = [q, k, v, None, None], device.random((items, steps, depth), dtype)
        run, grad = ours(device, "attention", inputs, outputs_of(device, "attention", inputs), [head, None], params)
        forward = forward_of(device.torch, "attention", params)
        seconds = device.seconds(run), device.seconds(grad)
        yield {
            "section": "attention", "dtype": dtype, "N": items, "T": steps, "D": depth,
            "forward_us": seconds[0] * 1e6, "step_us": sum(seconds) * 1e6,
            "torch_step_us": _micro(_timed(device, step_of, device.torch, forward, [q, k, v], [head])),
        }  # fmt: skip


def layer_arrays(device: Any, hidden: int, batch: int, steps: int, dtype: str) -> tuple[list[Any], ...]:
    """Inputs, outputs and gradients of the outputs of an LSTM layer with as many inputs as units."""
    size = 1 / math.sqrt(hidden)
    weights = [device.random(shape, dtype, size) for shape in ((4 * hidden, hidden), (4 * hidden,)) * 2]
    states = [device.random((batch, hidden), dtype) for _ in "hc"]
    inputs = [device.random((steps, batch, hidden), dtype), *weights, *states]
    shapes = [(steps, batch, hidden), (batch, hidden), (batch, hidden), (steps, batch, 4 * hidden)]
    outputs = [device.empty(shape, dtype) for shape in shapes]
    return inputs, outputs, [*(device.random(shape, dtype) for shape in shapes[:3]), None]


@contextlib.contextmanager
def tensor_float(device: Any, allowed: bool) -> Iterator[None]:
    """Whether cuDNN and cuBLAS may round float32 to 11 bits."""
    backends = device.torch.backends
    before = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = before


def _layer_step(device: Any, inputs: list[Any], outputs: list[Any], heads: list[Any]) -> Callable[[], Any]:
    run, grad = ours(device, "lstm_layer", inputs, outputs, heads, {"reverse": 0.0})
    return lambda: (run(), grad())


def layer_rows(device: Any, sizes: Sizes, clock: Clock, step_by_step: Path) -> Iterator[Row]:
    """A training step of an LSTM layer, all gradients included; ``step_by_step`` is a library without grid barrier."""
    for (hidden, batch, steps), dtype in clock.take(itertools.product(sizes.layers, ("float32", "float16"))):
        arrays = layer_arrays(device, hidden, batch, steps, dtype)
        row: Row = {"section": "layer", "dtype": dtype, "H": hidden, "B": batch, "T": steps}
        row["ours_ms"] = device.seconds(_layer_step(device, *arrays), limit=0.4) * 1e3
        with using_library(step_by_step):
            row["step_by_step_ms"] = device.seconds(_layer_step(device, *arrays), limit=0.4) * 1e3
        yield {**row, **_layer_of_torch(device, arrays[0], arrays[2][:3], dtype)}


def _layer_of_torch(device: Any, inputs: list[Any], heads: list[Any], dtype: str) -> Row:
    """The same step by cuDNN, and unfused; cuDNN a second time where it may round float32 to 11 bits."""
    x, wi, bi, wh, bh, h0, c0 = inputs
    row: Row = {}
    for allowed, name in ((False, ""), (True, "_tf32"))[: 2 if dtype == "float32" else 1]:
        with tensor_float(device, allowed):
            seconds = _timed(device, cudnn_step, device.torch, x, h0.shape[1], heads)
            row[f"cudnn{name}_ms"] = _milli(seconds)
    with tensor_float(device, False):
        for hoisted, name in ((False, "unfused_ms"), (True, "unfused_hoisted_ms")):
            forward = UnfusedLstm(device.torch, hoisted)
            row[name] = _milli(_timed(device, step_of, device.torch, forward, [x, h0, c0, wi, bi, wh, bh], heads))
    return row


def _milli(seconds: float | str) -> float | str:
    return seconds if isinstance(seconds, str) else seconds * 1e3


def _layout_ways(device: Any, hidden: int, batch: int, steps: int) -> dict[str, Callable[[], Any]]:
    matmul = device.torch.mm
    h, weights = device.random((batch, hidden), "float32"), device.random((4 * hidden, hidden), "float32")
    x, h_turned = device.random((steps * batch, hidden), "float32"), device.random((hidden, batch), "float32")
    parts, turned = x.split(batch), weights.t()
    result, whole = (device.empty((rows, 4 * hidden), "float32") for rows in (batch, steps * batch))
    result_turned = device.empty((4 * hidden, batch), "float32")
    return {
        "row_major_us": lambda: [matmul(h, turned, out=result) for _ in range(steps)],
        "transposed_us": lambda: [matmul(weights, h_turned, out=result_turned) for _ in range(steps)],
        "inputs_by_step_us": lambda: [matmul(part, turned, out=result) for part in parts],
        "inputs_hoisted_us": lambda: matmul(x, turned, out=whole),
    }


def layout_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Products of a layer by cuBLAS: state by weights row-major and transposed (EcoRNN), inputs by step and at once."""
    for hidden, batch, steps in clock.take(sizes.layers):
        with tensor_float(device, False):
            ways = _layout_ways(device, hidden, batch, steps)
            times = {name: device.seconds(way, limit=0.2) * 1e6 for name, way in ways.items()}
        yield {"section": "layout", "H": hidden, "B": batch, "T": steps, **times}
