"""The kernels on the CPU at large inputs: gradients are no further off than MXNet's."""

from __future__ import annotations

import pytest

from tests.kernels.magnitudes import OFFSETS, SIZES, SUBJECTS, check_gradients
from tests.support.kernel_calls import call


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_gradients_at_large_inputs_are_no_further_off_than_mxnets(name: str, size: float, offset: float) -> None:
    check_gradients(SUBJECTS[name], call, size, offset)
