"""Trains the small language model on a device, cpu or gpu, with an installed echo: small_lm.py cpu [--compat]

Prints a hash of its weights and how many fused operators ran. The fake GPU may have nothing to complain about.
Echo is there by ECHO=1 alone; ``--compat`` imports `echo.compat` for newer versions of numpy.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

if "--compat" in sys.argv:
    import echo.compat  # noqa: F401

import mxnet as mx
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: the installed echo counts
from benchmarks.models import SMALL
from tests.fake_gpu import device

STEPS = 3


def main() -> None:
    """Three steps of stochastic gradient descent."""
    mx.random.seed(1)
    np.random.seed(1)
    model = SMALL["lm"]()
    on = mx.gpu(0) if sys.argv[1] == "gpu" else mx.cpu()
    executor = model.symbol.simple_bind(on, grad_req=model.grad_req(), **model.shapes)
    for name, array in executor.arg_dict.items():
        shape = array.shape
        array[:] = np.random.randint(0, 5, shape) if name in model.shapes else np.random.normal(0, 0.1, shape)
    for _ in range(STEPS):
        executor.forward(is_train=True)
        executor.backward()
        for name, gradient in executor.grad_dict.items():
            if gradient is not None:
                executor.arg_dict[name] -= 0.1 * gradient
    weights = [executor.arg_dict[name].asnumpy() for name in sorted(executor.arg_dict) if name not in model.shapes]
    assert on.device_type == "gpu" or all(np.isfinite(array).all() for array in weights)
    complaints = device.complaints() if on.device_type == "gpu" else []
    assert complaints == [], complaints
    digest = hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()
    print(digest, executor.debug_str().count("Op:_echo_"), "fused operators")


if __name__ == "__main__":
    main()
