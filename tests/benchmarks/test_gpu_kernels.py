"""The kernels' table as the benchmarks read it, against what the tests of kernels know."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu_cases import cases_of, draw
from benchmarks.gpu_kernels import KERNELS, Kernel, Tensor, parse
from echo.ir.graph import READS
from tests.kernels.table import SPECS


def test_every_kernel_is_there() -> None:
    assert set(KERNELS) == set(SPECS) >= set(READS)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_tensors_and_parameters(name: str) -> None:
    kernel, spec = KERNELS[name], SPECS[name]
    dims = {symbol: 3 + number for number, symbol in enumerate(kernel.symbols)}
    if name == "attention":  # one mask for all items, and lengths of items
        dims.update({"L": dims["N"], "Gb": 1, "Gh": 1, "R": dims["Tq"]})
    for ours, theirs in ((kernel.inputs, spec.inputs), (kernel.outputs, spec.outputs)):
        assert [one.shape(dims) for one in ours] == [one.sizes(dims) for one in theirs]
    assert kernel.params == tuple(spec.params)
    given = [number for number, one in enumerate(spec.outputs) if not one.gradient]
    assert set(given) <= set(kernel.without_gradient)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_kernel_has_a_case_in_each_type(name: str) -> None:
    case = next(case for case in cases_of(1) if case.kernel == name and min(case.dims.values()))
    inputs = draw(case, "float16", np.random.default_rng(0))
    for tensor, array in zip(KERNELS[name].inputs, inputs):
        if array is None:
            assert tensor.optional or tensor.name in ("gamma", "beta")
        else:
            assert array.shape == tensor.shape(case.dims)
            assert str(array.dtype) == (case.lengths if tensor.type == "lengths" else tensor.type or "float16")


def test_parsed_row_gives_tensors_and_gradient_inputs() -> None:
    row = '{"blend", "x[B,4H] bits[(n+7)/8]:uint8 b[H]?", "y\'[B] lse[1]:float32",\n "part", "dy\' x "\n "b"},'
    (kernel,) = parse(row).values()
    assert kernel == Kernel(
        "blend",
        (
            Tensor("x", ("B", "4H"), "", False),
            Tensor("bits", ("(n+7)/8",), "uint8", False),
            Tensor("b", ("H",), "", True),
        ),
        (Tensor("y'", ("B",), "", False), Tensor("lse", ("1",), "float32", False)),
        ("part",),
        ("dy'", "x", "b"),
    )
    assert kernel.symbols == ("B", "H", "n")
    assert kernel.without_gradient == (1,)
    assert kernel.read_in_backward == (0, 2)
    assert kernel.inputs[1].shape({"n": 17}) == (3,)


@pytest.mark.parametrize("text", ["", "const Row kRows[] = {};", '{"blend", "x", "y[B]", "", ""},'])
def test_text_without_table_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


def test_a_kernel_without_cases_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Kernel("toy", (Tensor("x", ("B", "H"), "", False),), (), ("part",), ())
    monkeypatch.setattr("benchmarks.gpu_cases.KERNELS", {**KERNELS, "toy": toy})
    (case,) = [case for case in cases_of(1) if case.kernel == "toy"]
    assert (case.dims, case.params) == ({"B": 5, "H": 9}, {"part": 0.5})
