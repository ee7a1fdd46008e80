"""What planning is told of workspaces is what the kernels then ask for, on both backends."""

from __future__ import annotations

import pytest

from echo.errors import KernelError
from echo.kernels.library import workspace_bytes
from echo.kernels.workspace import MOST_BYTES, operator_workspace
from tests.kernels.cases import draw
from tests.kernels.table import SPECS

SIZES = {"B": 5, "H": 24, "T": 7, "N": 70, "Tq": 9, "Tk": 33, "D": 16, "Dv": 12, "I": 20, "V": 300, "n": 90, "R": 6}
OPERATORS = sorted(set(SPECS) - {"dropout"})


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("kernel", OPERATORS)
def test_it_is_what_the_calls_ask_for(kernel: str, absent: bool, dtype: str, backend: str) -> None:
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
