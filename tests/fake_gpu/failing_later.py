"""Trains a small language model on the fake GPU, in a process of its own whose device fails in the middle of it.

Prints a line for each step: "ok", or the error in one line.
"""

from __future__ import annotations

import os

import mxnet as mx

import echo
from benchmarks.models import SMALL
from tests.fake_gpu import device


def tried(executor: mx.executor.Executor) -> str:
    """The outcome of a step."""
    try:
        executor.forward(is_train=True)
        executor.backward()
        mx.nd.waitall()
    except mx.MXNetError as error:
        return " ".join(str(error).split())
    return "ok"


def main() -> None:
    """A step, one on a device that fails, and one on a device that is well again, for each way to fail."""
    model = SMALL["lm"]()
    echo.enable(max_overhead=None, strict=True)
    bound = [model.symbol.simple_bind(mx.gpu(0), grad_req=model.grad_req(), **model.shapes) for _ in range(2)]
    print(tried(bound[0]))
    for executor, name, value in (
        (bound[0], "FAKE_CUDA_LAUNCH", 719),
        (bound[1], "FAKE_CUDA_BYTES", device.used() + 4096),  # its memory is allocated in its first step
    ):
        os.environ[name] = str(value)
        print(tried(executor))
        del os.environ[name]
        print(tried(executor))


if __name__ == "__main__":
    main()
