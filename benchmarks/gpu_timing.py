"""Times of the kernels that a device's memory bounds, and of attention, against torch's forms of them."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Iterable, Iterator

from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_kernels import KERNELS
from benchmarks.gpu_ours import heads_of, ours, outputs_of, scaled, timed
from benchmarks.gpu_sizes import Sizes
from benchmarks.gpu_torch import forward_of, step_of


def copy_bandwidth(device: Any, sizes: Sizes) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source = device.random((sizes.rows * 4, sizes.wide), "float32")
    target = device.empty(tuple(source.shape), "float32")
    return 2 * source.numel() * 4 / float(device.seconds(lambda: target.copy_(source)))


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


def _bytes(arrays: Iterable[Any]) -> int:
    return sum(array.numel() * array.element_size() for array in arrays if array is not None)


def _named(kernel: str, inputs: list[Any]) -> str:
    return kernel + (" with norm" if kernel == "mlp_score" and inputs[3] is not None else "")


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
    for dtype, (kernel, inputs, params) in clock.take(cases, lambda case: f"{case[1][0]} {case[0]}"):
        outputs = outputs_of(device, kernel, inputs)
        heads = heads_of(device, kernel, outputs, dtype)
        run, grad = ours(device, kernel, inputs, outputs, heads, params)
        read = [[*inputs, *outputs][i] for i in KERNELS[kernel].read_in_backward]
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
            "step_us": sum(seconds) * 1e6, "torch_step_us": scaled(timed(device, lambda made: made, step), 1e6),
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
    for dtype, (kernel, inputs, params) in clock.take(cases, lambda case: f"{case[1][0]} {case[0]}"):
        device.torch._dynamo.reset()
        heads = heads_of(device, kernel, outputs_of(device, kernel, inputs), dtype)
        seconds = timed(device, lambda *call: _torch_step(*call)[0], device, kernel, inputs, heads, params, True)
        row = {"section": "compiled", "kernel": _named(kernel, inputs), "dtype": dtype}
        yield {**row, "compiled_step_us": scaled(seconds, 1e6)}


def attention_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Attention and its gradient against torch's SDPA, which may use tensor cores, and its products and softmax."""
    for dtype, (items, steps, depth) in clock.take(itertools.product(("float32", "float16"), sizes.attentions)):
        q, k, v = (device.random((items, steps, depth), dtype) for _ in "qkv")
        params = {"scale": 1 / math.sqrt(depth), "masking": 0.0, "fill": 0.0, "root": 0.0}
        inputs, head = [q, k, v, *[None] * 4], device.random((items, steps, depth), dtype)
        run, grad = ours(device, "attention", inputs, outputs_of(device, "attention", inputs), [head, None], params)
        forward, eager = (forward_of(device.torch, name, params) for name in ("attention", "eager_attention"))
        seconds = device.seconds(run), device.seconds(grad)
        yield {
            "section": "attention", "dtype": dtype, "N": items, "T": steps, "D": depth,
            "forward_us": seconds[0] * 1e6, "step_us": sum(seconds) * 1e6,
            "sdpa_step_us": scaled(timed(device, step_of, device.torch, forward, [q, k, v], [head]), 1e6),
            "eager_step_us": scaled(timed(device, step_of, device.torch, eager, [q, k, v], [head]), 1e6),
        }  # fmt: skip
