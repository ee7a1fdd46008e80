"""Trains a small language model on the fake GPU, in a process of its own whose device fails in some way.

Prints how many fused operators run, and how many feature maps run again.
"""

from __future__ import annotations

import sys

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
    operators = executor.debug_str()
    print(operators.count("Op:_echo_"), operators.count("_echo\n"), file=sys.stdout)


if __name__ == "__main__":
    main()
