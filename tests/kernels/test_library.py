"""The library of kernels through ctypes: what is handed over, and what is refused before it is."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from echo.errors import KernelError
from echo.kernels import library
from echo.kernels.library import ADD, SKIP, WRITE, call, level, workspace_bytes

X = np.array([-1.0, 2.0, 3.0, -4.0, 5.0], np.float32)


def outputs() -> tuple[Any, Any]:
    return np.full(5, 7.0, np.float32), np.full(1, 7, np.uint8)


def test_a_call_writes_its_outputs() -> None:
    y, bits = outputs()
    call("relu", [X], [y, bits])
    assert (y.tolist(), bits.tolist()) == ([0, 2, 3, 0, 5], [0b10110])


def test_what_happens_to_outputs() -> None:
    y, bits = outputs()
    call("relu", [X], [y, bits], [SKIP, WRITE])
    assert (y.tolist(), bits.tolist()) == ([7] * 5, [0b10110])
    into = np.ones(5, np.float32)
    call("relu_grad", [X, None, None, None, bits], [into], [ADD])
    assert into.tolist() == [1, 3, 4, 1, 6]


def test_the_level_is_one_that_there_is() -> None:
    assert level() in ("avx512", "avx2", "portable")


def test_a_workspace_may_be_given() -> None:
    generator = np.random.default_rng(0)
    steps, batch, size = 3, 2, 4
    shapes = (steps, batch, size), (16, size), (16,), (16, size), (16,), (batch, size), (batch, size)
    inputs = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    results = (steps, batch, size), (batch, size), (batch, size), (steps, batch, 16)
    first, second = ([np.zeros(shape, np.float32) for shape in results] for _ in range(2))
    needed = workspace_bytes("lstm_layer", inputs, first, params=[0])
    call("lstm_layer", inputs, first, params=[0])
    call("lstm_layer", inputs, second, params=[0], workspace=library._aligned(max(needed, 1)))
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
    assert library._aligned(100).ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda y, bits: call("relu", [X[::2]], [y, bits]), r"relu: input 0, shape \(3,\), is not dense"),
        (lambda y, bits: call("relu", [X.astype(np.int64)], [y, bits]), "input 0 has type int64, expected one of"),
        (lambda y, bits: call("relu", [[1.0]], [y, bits]), "relu: input 0 is a list, expected a NumPy array"),
        (lambda y, bits: call("relu", [X], [y, bits], [WRITE]), "relu: got 1 reqs for 2 outputs"),
        (lambda y, bits: call("relu", [X.reshape((1,) * 5 + (5,))], [y, bits]), "input 0 has 6 axes, expected 5"),
        (lambda y, bits: call("no_such", [X], [y, bits]), "no_such"),
        (lambda y, bits: call("relu", [X], [y, bits], backend="tpu"), "there is no backend 'tpu'"),
    ],
)  # fmt: skip
def test_what_is_refused(wrong: Callable[..., None], message: str) -> None:
    y, bits = outputs()
    with pytest.raises(KernelError, match=message):
        wrong(y, bits)
    assert (y.tolist(), bits.tolist()) == ([7] * 5, [7])


def test_a_read_only_output_is_refused() -> None:
    y, bits = outputs()
    y.flags.writeable = False
    with pytest.raises(KernelError, match="relu: output 0 is read-only"):
        call("relu", [X], [y, bits])
