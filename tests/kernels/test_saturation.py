"""The kernels on the CPU where gates are nearly 0 or 1: gradients are right element by element, at every level."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.saturation import SUBJECTS, check_saturated
from tests.kernels.test_gemm import LEVELS
from tests.support.kernel_calls import call
from tests.support.reference import arrays, sigmoid

ROOT = Path(__file__).parents[2]
AT_A_LEVEL = """
from tests.support.kernel_calls import call
from tests.kernels.saturation import SUBJECTS, check_saturated
for name in SUBJECTS:
    check_saturated(name, call)
"""


@pytest.mark.parametrize("name", SUBJECTS)
def test_gradients_of_saturated_gates_are_right_by_element(name: str) -> None:
    check_saturated(name, call)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_at_every_level(level: str) -> None:
    environment = {**os.environ, "ECHO_DEBUG": f"level={level}", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", AT_A_LEVEL], cwd=ROOT, env=environment, check=True)


def test_update_gate_without_difference_has_no_gradient() -> None:
    """Their difference is 0: were one of them off by its last bit, the update gate would have a gradient."""
    x = np.linspace(9.1, 40, 500, dtype=np.float32)
    pre = np.concatenate([0 * x, np.linspace(-20, 20, 500, dtype=np.float32), x])[None]
    inputs = [pre, np.zeros((1, 1500), np.float32), np.ones((1, 500), np.float32)]
    outputs = [np.empty((1, 500), np.float32)]
    call("gru_cell", inputs, outputs)
    np.testing.assert_array_equal(outputs[0], inputs[2])
    gradients = [np.empty_like(array) for array in inputs]
    call("gru_cell_grad", [np.ones((1, 500), np.float32), *inputs, *outputs], gradients)
    assert not gradients[0][0, 500:1000].any()


@pytest.mark.parametrize("name", ["lstm_cell", "lstm_layer"])
def test_gradients_from_rounded_gates_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the check finds: 1 - gate, taken from a gate in float32."""

    def rounded(x: object) -> object:
        gate = sigmoid(np.asarray(x)).astype(np.float32)
        return (gate * (1 - gate)).astype(np.float64)

    monkeypatch.setattr("tests.support.reference.cells.sigmoid_slope", rounded)
    with pytest.raises(AssertionError, match="an element is off by"):
        check_saturated(name, call)


def test_slopes_of_the_reference() -> None:
    """Against the exponentials that they are far from zero, and in the middle."""
    x = np.array([-800.0, -40.0, -1.0, -0.0, 0.0, 1.0, 40.0, 800.0])
    e = np.exp(-np.abs(x))
    np.testing.assert_allclose(arrays.sigmoid_slope(x), e / (1 + e) ** 2, rtol=1e-12)
    np.testing.assert_allclose(arrays.tanh_slope(x), 4 * e**2 / (1 + e**2) ** 2, rtol=1e-12)
    for slope in (arrays.sigmoid_slope, arrays.tanh_slope):
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(slope(np.array([-np.inf, np.inf, np.nan])), [0, 0, np.nan])
