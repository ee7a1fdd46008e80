"""Runs kernels against an emulated driver in a process that has loaded a cuBLAS, and prints what that did, as JSON.

    python -m tests.kernels.cuda_products DRIVER KERNELS CUBLAS CREATING MULTIPLYING LASTING CASES [LIBRARY]

CREATING and MULTIPLYING are cuBLAS's answers to that, after LASTING products. CASES are a "layer", some "losses",
"half losses" of float16 alone, or "all" of layers and losses; LIBRARY is taken instead of echo's.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_cases import LAYERS, Case, cases_of, check
from benchmarks.gpu_library import using_library
from echo.kernels import library
from tests.kernels.cuda_emulation import Emulated
from tests.support import kernel_calls
from tests.support.kernel_calls import ADD, SKIP, WRITE

LAYER = Case("lstm_layer", {"T": 5, "B": 3, "I": 7, "H": 33}, {"reverse": 0})
_PARAMS = {"grad_scale": 3.0, "use_ignore": 1, "ignore_label": 1, "normalization": 2, "smooth_alpha": 0.1}
LOSSES = (
    Case("softmax_output", {"N": 150, "I": 6, "V": 51}, {**_PARAMS, "normalization": 1}),
    Case("softmax_output", {"N": 20, "I": 6, "V": 1001}, _PARAMS),
    Case("linear_cross_entropy", {"N": 150, "I": 6, "V": 52}),
    Case("linear_cross_entropy", {"N": 20, "I": 8, "V": 1000}),
)
WITH_PRODUCTS = (*LAYERS, "softmax_output", "linear_cross_entropy")
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


def small_gradients(backend: Emulated, dtype: str) -> None:
    """Of scores, by half of what float16 can hold: what 4095 of them leave in dx and dw is not small."""
    classes, factor, label = 4096, 2.0**-14, np.zeros(3, np.float32)
    x, w = np.zeros((3, 8), dtype), np.full((classes, 8), 100, dtype)
    x[:, 0], w[0] = 100, 0
    w[:, 0] = 0  # so that all classes are equally probable
    prob = np.full((3, classes), 1 / classes, dtype)
    entropy = [np.full(3, -factor, dtype), None, None, x, w, None, label, None, None, prob]
    softmax = [None, x, w, None, label, prob]
    for kernel, inputs, params in (
        ("linear_cross_entropy_grad", entropy, []), ("softmax_output_grad", softmax, [factor, 0, -1, 0, 0])
    ):  # fmt: skip
        dx, dw = np.full_like(x, np.nan), np.full_like(w, np.nan)
        outputs: list[Any] = [dx, dw, None, None]
        backend.call(kernel, inputs, outputs, [WRITE, WRITE, SKIP, SKIP], params)
        np.testing.assert_allclose(dx[:, 1:].astype(float), factor * 100 * (1 - 1 / classes), rtol=1e-3)
        np.testing.assert_allclose(dw[1:, 0].astype(float), 3 * factor * 100 / classes, rtol=2e-2)


def infinite_head(backend: Emulated, dtype: str) -> None:
    """Of one row: the gradients of the other rows of x are the same as if it was finite."""
    rng, found = np.random.default_rng(0), []
    x, w = (rng.normal(size=(rows, 8)).astype(dtype) for rows in (3, 16))
    prob, label = np.full((3, 16), 1 / 16, dtype), np.zeros(3, np.float32)
    for head in (0.5, np.inf, -np.inf, np.nan):
        dx, dw = np.full_like(x, 77), np.full_like(w, 77)
        heads = np.array([1, head, 0.25], dtype)
        inputs, outputs = [heads, None, None, x, w, None, label, None, None, prob], [dx, dw, None, None]
        backend.call("linear_cross_entropy_grad", inputs, outputs, [WRITE, WRITE, SKIP, SKIP], [])
        found.append(dx)
    for dx in found:
        np.testing.assert_array_equal(dx[[0, 2]], found[0][[0, 2]])
        assert np.isfinite(dx[1]).all() == (dx is found[0])
    assert np.isfinite(found[0]).all()


def rooms() -> dict[str, int]:
    """The workspaces of losses of many rows, and of few."""
    attrs = dict(zip(("grad_scale", "use_ignore", "ignore_label", "normalization", "smooth_alpha"), "10020"))
    attrs["present"] = "1111"
    found = {}
    for rows, kernel, dtype in itertools.product(
        (16384, 16), ("softmax_output", "linear_cross_entropy"), ("float32", "float16")
    ):
        shapes = [(rows, 1024), (128256, 1024), (128256,), (rows,)]
        found[f"{kernel} {dtype} {rows}"] = library.operator_workspace(kernel, attrs, shapes, dtype, "cuda")
    return found


def one_call(blas: ctypes.CDLL) -> dict[str, Any]:
    """The stream and the workspace of a product, with those that its call was given."""
    inputs = [np.ones(shape, np.float32) for shape in ((2, 3), (4, 3), (4,), (2,))]
    prob, params = [np.zeros((2, 4), np.float32)], [1.0, 0, -1, 0, 0.0]
    needed = kernel_calls.workspace_bytes("softmax_output", inputs, prob, params=params, backend="cuda")
    room = kernel_calls.aligned(needed)
    kernel_calls.call("softmax_output", inputs, prob, params=params, backend="cuda", workspace=room, stream=STREAM)
    start = blas.fake_blas_workspace() - room.ctypes.data
    return {"stream": blas.fake_blas_stream(), "inside": [start, start + blas.fake_blas_workspace_bytes(), needed]}


def cases(which: str) -> list[Case]:
    """A layer; losses of one part or several, of which the last is odd; or all."""
    if which.endswith("losses"):
        return list(LOSSES)
    return [LAYER, *(case for case in cases_of(1) if which == "all" and case.kernel in WITH_PRODUCTS)]


def run(blas: ctypes.CDLL, driver: str, kernels: str, which: str) -> dict[str, Any]:
    """The results of the cases in each type."""
    backend = Emulated(Path(driver), Path(kernels))
    said: dict[str, Any] = {}
    for dtype in ("float16",) if which == "half losses" else ("float32", "float16"):
        backend.driver.fake_new_contexts()
        for seed, case in enumerate(cases(which)):
            for reqs in ((WRITE, ADD), (ADD, WRITE)):
                check(case, dtype, backend, np.random.default_rng(seed), lambda i, reqs=reqs: reqs[i % 2])
        if which.endswith("losses"):
            small_gradients(backend, dtype)
            infinite_head(backend, dtype)
        said[dtype] = {"products": products_of(blas), "loads": backend.loads()}
    said["call"] = one_call(blas)
    return said


def main() -> int:
    driver, kernels, path, creating, multiplying, lasting, which, *others = sys.argv[1:]
    blas = open_blas(path)
    blas.fake_blas_fails(int(creating), int(multiplying), int(lasting))
    with using_library(Path(others[0])) if others else contextlib.nullcontext():
        said = run(blas, driver, kernels, which)
    said["rooms"] = rooms()
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
