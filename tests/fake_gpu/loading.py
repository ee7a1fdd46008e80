"""Trains NMT for two steps on the fake GPU, in a process of its own, and prints the kernels that it loaded."""

from __future__ import annotations

import mxnet as mx

import echo
from benchmarks.models import MODELS
from tests.fake_gpu import device
from tests.support import ptx


def main() -> None:
    model = MODELS["nmt"]()
    with device.without_kernels():
        symbol = echo.optimize(model.symbol, max_overhead=None, fuse="memory")
        executor = symbol.simple_bind(mx.gpu(0), grad_req=model.grad_req(), **model.shapes)
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward()
        mx.nd.waitall()
    for kernel in ptx.kernels():
        if times := device.count(f"module of {kernel};"):
            print(kernel, times)


if __name__ == "__main__":
    main()
