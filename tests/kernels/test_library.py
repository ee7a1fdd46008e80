"""Planning knows the workspaces that the kernels then request, on both backends."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from echo.errors import KernelError
from echo.kernels.library import MOST_BYTES, level, operator_workspace
from tests.kernels.cases import draw
from tests.kernels.table import SPECS
from tests.support import kernel_calls
from tests.support.kernel_calls import ADD, SKIP, WRITE, call, workspace_bytes

SIZES = {"B": 5, "H": 24, "T": 7, "N": 70, "Tq": 9, "Tk": 33, "D": 16, "Dv": 12, "I": 20, "V": 300, "n": 90, "R": 6}
OPERATORS = sorted(set(SPECS) - {"dropout"})


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("kernel", OPERATORS)
def test_operator_workspace_is_that_of_its_calls(kernel: str, absent: bool, dtype: str, backend: str) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "n" or kernel not in ("attention", "draw_mask")}
    case = draw(kernel, sizes, dtype, absent=absent)
    outputs = case.empty(case.spec.outputs, case.spec.outputs)
    gradients = case.empty(case.spec.inputs, case.inputs)
    params = tuple(case.params.values())
    forward = workspace_bytes(kernel, case.inputs, outputs, None, params, backend)
    heads = [*case.heads, *case.inputs, *outputs]
    backward = workspace_bytes(kernel + "_grad", heads, gradients, None, params, backend)
    attrs = {name: str(value) for name, value in case.params.items()}
    attrs["present"] = "".join("0" if array is None else "1" for array in case.inputs)
    shapes = [array.shape for array in case.inputs if array is not None]
    assert operator_workspace(kernel, attrs, shapes, dtype, backend) == max(forward, backward)


def test_some_need_none_and_some_need_more_than_mxnet_gives() -> None:
    assert operator_workspace("relu", {}, [(1 << 30,)], "float32", "cpu") == 0
    steps, batch, size = 2100, 256, 1024
    shapes = [(steps, batch, size), *[(4 * size, size), (4 * size,)] * 2, (batch, size), (batch, size)]
    assert operator_workspace("lstm_layer", {"reverse": "0"}, shapes, "float32", "cuda") > MOST_BYTES


def test_leading_axes_are_as_in_mxnets_graph() -> None:
    flat = operator_workspace("layer_norm", {"eps": "1e-5"}, [(60, 32), (32,), (32,)], "float32", "cpu")
    assert operator_workspace("layer_norm", {"eps": "1e-5"}, [(3, 20, 32), (32,), (32,)], "float32", "cpu") == flat > 0


@pytest.mark.parametrize(
    ("kernel", "shapes", "message"),
    [
        ("nothing", [(3,)], "there is no kernel nothing"),
        ("gru_cell", [(2, 9), (2, 9)], "gru_cell: got 2 inputs, expected more"),
        ("gru_cell", [(2, 9), (2, 9), (2, 4)], "cannot have the shape"),
    ],
)
def test_wrong_operators_are_refused(kernel: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        operator_workspace(kernel, {}, shapes, "float32", "cpu")


X = np.array([-1.0, 2.0, 3.0, -4.0, 5.0], np.float32)


def outputs() -> tuple[Any, Any]:
    return np.full(5, 7.0, np.float32), np.full(1, 7, np.uint8)


def test_a_call_writes_its_outputs() -> None:
    y, bits = outputs()
    call("relu", [X], [y, bits])
    assert (y.tolist(), bits.tolist()) == ([0, 2, 3, 0, 5], [0b10110])


def test_outputs_are_written_added_to_or_skipped() -> None:
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
    call("lstm_layer", inputs, second, params=[0], workspace=kernel_calls.aligned(max(needed, 1)))
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
    assert kernel_calls.aligned(100).ctypes.data % 64 == 0


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
def test_invalid_call_raises_and_leaves_outputs_alone(wrong: Callable[..., None], message: str) -> None:
    y, bits = outputs()
    with pytest.raises(KernelError, match=message):
        wrong(y, bits)
    assert (y.tolist(), bits.tolist()) == ([7] * 5, [7])


def test_a_read_only_output_is_refused() -> None:
    y, bits = outputs()
    y.flags.writeable = False
    with pytest.raises(KernelError, match="relu: output 0 is read-only"):
        call("relu", [X], [y, bits])
