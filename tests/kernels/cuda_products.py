"""Runs kernels against an emulated driver in a process that has loaded a cuBLAS, and prints what that did, as JSON.

    python -m tests.kernels.cuda_products DRIVER KERNELS CUBLAS CREATING MULTIPLYING EVERY

CREATING and MULTIPLYING are what cuBLAS answers to that; EVERY is 1 for all cases of layers and losses, else 0.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_cases import LAYERS, Case, cases_of, check
from echo.kernels import library
from echo.kernels.library import ADD, WRITE
from tests.kernels.cuda_emulation import Emulated

LAYER = Case("lstm_layer", {"T": 5, "B": 3, "I": 7, "H": 33}, {"reverse": 0})
WITH_PRODUCTS = (*LAYERS, "softmax_output")
STREAM = 0x7F00_0000_1000


def open_blas(path: str) -> ctypes.CDLL:
    """This cuBLAS, which is one that the process has from now on."""
    blas = ctypes.CDLL(path)
    blas.fake_blas_products.restype = ctypes.c_char_p
    blas.fake_blas_stream.restype = blas.fake_blas_workspace.restype = ctypes.c_size_t
    blas.fake_blas_workspace_bytes.restype = ctypes.c_size_t
    return blas


def products_of(blas: ctypes.CDLL) -> list[str]:
    """A line for each product since this was asked."""
    return list(blas.fake_blas_products().decode().splitlines())


def one_call(blas: ctypes.CDLL) -> dict[str, Any]:
    """The stream and the workspace of a product, with those that its call was given."""
    inputs = [np.ones(shape, np.float32) for shape in ((2, 3), (4, 3), (4,), (2,))]
    prob, params = [np.zeros((2, 4), np.float32)], [1.0, 0, -1, 0, 0.0]
    needed = library.workspace_bytes("softmax_output", inputs, prob, params=params, backend="cuda")
    room = library._aligned(needed)
    library.call("softmax_output", inputs, prob, params=params, backend="cuda", workspace=room, stream=STREAM)
    start = blas.fake_blas_workspace() - room.ctypes.data
    return {"stream": blas.fake_blas_stream(), "inside": [start, start + blas.fake_blas_workspace_bytes(), needed]}


def main() -> int:
    driver, kernels, path, creating, multiplying, every = sys.argv[1:]
    blas = open_blas(path)
    blas.fake_blas_fails(int(creating), int(multiplying))
    backend = Emulated(Path(driver), Path(kernels))
    cases = [case for case in cases_of(1) if case.kernel in WITH_PRODUCTS] if int(every) else []
    said: dict[str, Any] = {}
    for dtype in ("float32", "float16"):
        backend.driver.fake_new_contexts()
        for seed, case in enumerate([LAYER, *cases]):
            for reqs in ((WRITE, ADD), (ADD, WRITE)):
                check(case, dtype, backend, np.random.default_rng(seed), lambda i, reqs=reqs: reqs[i % 2])
        said[dtype] = {"products": products_of(blas), "loads": backend.loads()}
    said["call"] = one_call(blas)
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
