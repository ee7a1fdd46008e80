"""The CUDA kernels, emulated, where gates are nearly 0 or 1: gradients are right element by element."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels.cuda_emulation import Emulated, built
from tests.kernels.saturation import SUBJECTS, check_saturated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SUBJECTS)
def test_gradients_of_saturated_gates_are_right_by_element(name: str) -> None:
    check_saturated(name, Emulated(built().driver, built().kernels).run)
