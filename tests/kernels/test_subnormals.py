"""Subnormal numbers on the CPU: zero where gradients of recurrent layers vanish, kept where bits are MXNet's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.cases import draw, run_backward, run_forward
from tests.support.kernel_calls import call

ROOT = Path(__file__).parents[2]
TINY = np.float32(1e-40)
SIZES = {"T": 12, "B": 8, "I": 48, "H": 64, "N": 8, "Tq": 16, "Tk": 16, "D": 32, "Dv": 32, "V": 64}
RECURRENT = ["lstm_cell", "lstm_norm_cell", "gru_cell", "gru_reset", "gru_mix", "lstm_layer", "gru_layer", "rnn_layer"]
# one thread, and several where the processor has them: those of OpenMP compute in the mode of the caller
WITH_THREADS = """
from tests.kernels.test_subnormals import RECURRENT, check_vanishing
for name in RECURRENT:
    check_vanishing(name)
"""


def is_subnormal(array: Any) -> Any:
    return (array != 0) & (np.abs(array) < np.finfo(np.float32).tiny)


def check_vanishing(name: str) -> None:
    """Gradients of tiny heads have no subnormal elements, and are not all zero."""
    case = draw(name, SIZES)
    case.heads = [None if head is None else head * np.float32(3e-37) for head in case.heads]
    gradients = run_backward(case, run_forward(case, call), call)
    arrays = [array for array in gradients if array is not None]
    assert any(array.any() for array in arrays)
    assert not any(is_subnormal(array).any() for array in arrays)


@pytest.mark.parametrize("name", RECURRENT)
def test_vanishing_gradient_has_no_subnormal_element(name: str) -> None:
    check_vanishing(name)


@pytest.mark.parametrize("threads", ["1", "4"])
def test_vanishing_gradients_on_threads(threads: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    subprocess.run([sys.executable, "-c", WITH_THREADS], cwd=ROOT, env=environment, check=True)


def test_masks_and_their_products_keep_subnormal_numbers() -> None:
    x = np.array([TINY, -TINY, 1, 0, TINY, 2, -3, TINY], np.float32)
    y, bits = np.empty_like(x), np.empty(1, np.uint8)
    call("relu", [x], [y, bits])
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert np.array_equal(np.unpackbits(bits, bitorder="little"), x > 0)
    call("apply_mask", [x, bits, np.ones(1, np.float32)], [y])
    np.testing.assert_array_equal(y, np.where(x > 0, x, 0 * x))
    scale = np.empty(1, np.float32)
    call("pack_mask", [np.abs(x)], [bits, scale])
    assert np.array_equal(np.unpackbits(bits, bitorder="little"), x != 0)
    reversed_ = np.empty((8, 1, 1), np.float32)
    call("sequence_reverse", [x.reshape(8, 1, 1), None], [reversed_])
    np.testing.assert_array_equal(reversed_.ravel(), x[::-1])


@pytest.mark.parametrize("name", RECURRENT)
def test_thread_computes_with_subnormal_numbers_after_a_call(name: str) -> None:
    check_vanishing(name)
    assert np.float32(1e-20) * np.float32(1e-20) == TINY
