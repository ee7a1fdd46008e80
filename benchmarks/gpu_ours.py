"""Calls of echo's kernels and of torch's forms of them on a device, ready to be timed."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Sequence

from benchmarks.gpu_kernels import KERNELS, Tensor
from tests.support.kernel_calls import SKIP, WRITE

Function = Callable[[], Any]


def dims_of(tensors: Sequence[Tensor], arrays: Sequence[Any]) -> dict[str, int]:
    """The sizes of the symbols of a kernel's axes, as arrays have them."""
    dims: dict[str, int] = {}
    for tensor, array in zip(tensors, arrays):
        for axis, size in zip(tensor.axes, () if array is None else array.shape):
            if axis.isalpha():
                dims[axis] = int(size)
    return dims


def outputs_of(device: Any, kernel: str, inputs: Sequence[Any]) -> list[Any]:
    """Memory for a kernel's outputs."""
    dims, dtype = dims_of(KERNELS[kernel].inputs, inputs), dtype_of(inputs[0])
    return [device.empty(one.shape(dims), one.type or dtype) for one in KERNELS[kernel].outputs]


def dtype_of(array: Any) -> str:
    """The name of the type of one of torch's arrays, as NumPy has it."""
    return str(array.dtype).rpartition(".")[2]


def ours(
    device: Any, kernel: str, inputs: list[Any], outputs: list[Any], heads: list[Any], params: dict[str, float]
) -> tuple[Function, Function]:
    """A kernel and its gradient, all floating gradients."""
    values = list(params.values())
    run = device.prepare(kernel, inputs, outputs, [WRITE] * len(outputs), values)
    run()
    gradients = [device.torch.empty_like(x) if x is not None and x.is_floating_point() else None for x in inputs]
    reqs = [SKIP if gradient is None else WRITE for gradient in gradients]
    return run, device.prepare(kernel + "_grad", [*heads, *inputs, *outputs], gradients, reqs, values)


def heads_of(device: Any, kernel: str, outputs: Sequence[Any], dtype: str) -> list[Any]:
    """Random gradients of the outputs, None of those that are not read."""
    without = KERNELS[kernel].without_gradient
    return [None if i in without else device.random(tuple(array.shape), dtype) for i, array in enumerate(outputs)]


def timed(device: Any, make: Callable[..., Function], *arguments: Any) -> float | str:
    """Seconds of what ``make`` makes; or why there are none: what others lack here says nothing of the kernels."""
    try:
        return float(device.seconds(make(*arguments), limit=0.5))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


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


def scaled(seconds: float | str, unit: float) -> float | str:
    """Seconds in a smaller unit, such as 1e3 of milliseconds; a reason why there are none stays."""
    return seconds if isinstance(seconds, str) else seconds * unit
