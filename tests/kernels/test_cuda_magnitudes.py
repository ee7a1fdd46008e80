"""The CUDA kernels, emulated, at large inputs: gradients are no further off than those of MXNet on the CPU."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels.cuda_emulation import Emulated, built
from tests.kernels.magnitudes import OFFSETS, SIZES, SUBJECTS, check_gradients

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


@pytest.mark.every(5)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_gradients_at_large_inputs_are_no_further_off_than_mxnets(name: str, size: float, offset: float) -> None:
    check_gradients(SUBJECTS[name], Emulated(built().driver, built().kernels).run, size, offset)
