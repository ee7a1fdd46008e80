"""The stream on which a CUDA kernel runs: given, or as its arrays name it (``__cuda_array_interface__``)."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from echo.errors import KernelError
from tests.kernels.cuda_emulation import Emulated, built
from tests.support import kernel_calls

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


@pytest.fixture
def backend() -> Emulated:
    emulated = Emulated(built().driver, built().kernels)
    emulated.launches()
    return emulated


class OnDevice:
    """An array as a framework shows it that keeps arrays on CUDA devices."""

    def __init__(self, array: Any, **more: Any) -> None:
        self.array, self.shape = array, array.shape
        data = (array.ctypes.data, False)
        self.__cuda_array_interface__ = {"data": data, "shape": array.shape, "typestr": array.dtype.str, **more}


LEGACY, SIDE, OTHER = 1, 0x7F00_0000_1000, 0x7F00_0000_2000


@pytest.mark.parametrize(
    ("of_input", "of_output", "given", "expected"),
    [
        ({}, {}, None, 0),  # version 2: torch's
        ({"stream": None}, {"stream": None}, None, 0),  # nothing to wait for
        ({"stream": SIDE}, {"stream": SIDE}, None, SIDE),
        ({"stream": None}, {"stream": SIDE}, None, SIDE),
        ({"stream": LEGACY}, {}, None, LEGACY),
        ({"stream": SIDE}, {"stream": OTHER}, OTHER, OTHER),
    ],
    ids=str,
)
def test_a_kernel_runs_on_the_stream_of_its_arrays(
    backend: Emulated, of_input: dict[str, Any], of_output: dict[str, Any], given: int | None, expected: int
) -> None:
    x, y, bits = np.ones(3, np.float32), np.zeros(3, np.float32), np.zeros(1, np.uint8)
    outputs = [OnDevice(y, **of_output), OnDevice(bits)]
    kernel_calls.call("relu", [OnDevice(x, **of_input)], outputs, backend="cuda", stream=given)
    assert backend.driver.fake_stream() == expected
    assert y.all()


@pytest.mark.parametrize(
    ("of_input", "of_output", "message"),
    [
        (SIDE, OTHER, "relu: output 0 is used on stream 0x7f0000002000, input 0 on stream 0x7f0000001000"),
        (SIDE, 0, "relu: output 0 names stream 0, expected 1 for the default stream"),
    ],
)
def test_arrays_of_several_streams(backend: Emulated, of_input: int, of_output: int, message: str) -> None:
    x, y, bits = np.ones(3, np.float32), np.zeros(3, np.float32), np.zeros(1, np.uint8)
    outputs = [OnDevice(y, stream=of_output), OnDevice(bits)]
    with pytest.raises(KernelError, match=message):
        kernel_calls.call("relu", [OnDevice(x, stream=of_input)], outputs, backend="cuda")
    assert backend.launches() == ""


def test_the_workspace_counts_among_the_arrays_of_a_stream(backend: Emulated) -> None:
    inputs = [np.ones((5, 3), np.float32), np.ones((5, 3), np.float32), np.ones(3, np.float32), None, None]
    outputs = [np.ones((5, 3), np.float32), np.ones(3, np.float32), np.ones(3, np.float32)]
    needed = kernel_calls.workspace_bytes("layer_norm_grad", inputs, outputs, params=[1e-5], backend="cuda")
    room = OnDevice(kernel_calls.aligned(needed), stream=SIDE)
    kernel_calls.call("layer_norm_grad", inputs, outputs, params=[1e-5], backend="cuda", workspace=room)
    assert backend.driver.fake_stream() == SIDE
