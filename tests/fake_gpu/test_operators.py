"""The fused operators through the gpu path of a CUDA wheel, with emulated kernels, against the CPU's."""

from __future__ import annotations

from typing import Any, Mapping

import mxnet as mx
import numpy as np
import pytest

from echo.frontend import install
from echo.ir.graph import READS
from tests.kernels.test_operators import ROWS, operator

TOLERANCE = {"float32": 1e-6, "float16": 2e-3}  # of the largest element


def _values(kernel: str, dtype: str) -> dict[str, Any]:
    random = np.random.RandomState(0)
    made = {
        "uint8": lambda shape: random.randint(0, 256, shape).astype(np.uint8),
        "lengths": lambda shape: random.randint(1, 4, shape).astype(np.float32),
        "float32": lambda shape: np.ones(shape, np.float32),
    }
    otherwise = lambda shape: random.normal(0, 0.5, shape).astype(dtype)  # noqa: E731
    return {f"in{i}": made.get(one.kind, otherwise)(one.shape) for i, one in enumerate(ROWS[kernel].inputs)}


def _step(symbol: mx.sym.Symbol, values: Mapping[str, Any], dtype: str, ctx: mx.Context) -> list[Any]:
    args = {name: mx.nd.array(value, ctx=ctx, dtype=value.dtype) for name, value in values.items()}
    trained = [name for name, value in values.items() if value.dtype == np.dtype(dtype)]
    blank = {name: np.zeros(values[name].shape, dtype) for name in trained}
    grads = {name: mx.nd.array(value, ctx=ctx, dtype=dtype) for name, value in blank.items()}
    requests = {name: "write" if name in trained else "null" for name in values}
    executor = symbol.bind(ctx, args, grads, requests)
    outputs = executor.forward(is_train=True)
    heads = [np.full(one.shape, one.dtype != np.uint8).astype(one.dtype) for one in outputs]
    executor.backward([mx.nd.array(head, ctx=ctx, dtype=head.dtype) for head in heads])
    return [one.asnumpy() for one in (*outputs, *(grads[name] for name in trained))]


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("kernel", sorted(set(READS) - {"draw_mask"}))  # which draws by other generators on GPUs
def test_a_fused_operator_gives_what_it_gives_on_the_cpu(kernel: str, dtype: str) -> None:
    assert install.extension_blocker() == ""
    assert install.device_blocker(mx.gpu(0)) == ""
    symbol, values = operator(kernel), _values(kernel, dtype)
    for cpu, gpu in zip(*(_step(symbol, values, dtype, ctx) for ctx in (mx.cpu(), mx.gpu(0)))):
        largest = np.abs(cpu.astype(np.float64)).max(initial=1e-9)
        assert np.abs(cpu.astype(np.float64) - gpu.astype(np.float64)).max(initial=0) <= TOLERANCE[dtype] * largest
