"""Trains a small language model on the fake GPU, in a process of its own whose device fails in some way.

Prints how many fused operators run.
"""

from __future__ import annotations

import mxnet as mx

import echo
from benchmarks.models import SMALL


def main() -> None:
    model = SMALL["lm"]()
    echo.enable(max_overhead=None)
    for _ in range(2):
        executor = model.symbol.simple_bind(mx.gpu(0), grad_req=model.grad_req(), **model.shapes)
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward()
        mx.nd.waitall()
    print(executor.debug_str().count("Op:_echo_"))


if __name__ == "__main__":
    main()
