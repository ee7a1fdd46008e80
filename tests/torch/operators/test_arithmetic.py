"""Operators element by element, and reductions, against MXNet."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch.operators import arithmetic  # noqa: E402
from tests.torch.oracle import Case, Oracle, check, numbers  # noqa: E402

X, Y, ROW = (3, 4, 5), (3, 4, 5), (1, 4, 1)
UNARY = [name for name, function in arithmetic.OPERATORS.items()
         if not hasattr(function, "func") and getattr(function, "__module__", "") != arithmetic.__name__]  # fmt: skip
PAIRS = [
    name
    for name, function in arithmetic.OPERATORS.items()
    if getattr(function, "func", function)
    in (arithmetic.binary, arithmetic.logical, arithmetic.maximum, arithmetic.minimum)
]
SCALARS = [name for name in arithmetic.OPERATORS if name.endswith("_scalar")]
REDUCTIONS = ["sum", "mean", "nansum", "prod", "max", "min"]
WHERE = {"condition": numbers([[1, 0, 2], [0, 0, -1]]), "x": (2, 3), "y": (2, 3)}

CASES = [
    *[Case(name, {"data": X}, positive=True) for name in UNARY if name not in ("zeros_like", "ones_like")],
    *[Case(name, {"data": X}) for name in ("abs", "sign", "relu", "floor", "ceil", "fix", "zeros_like", "ones_like")],
    *[Case(name, {"lhs": X, "rhs": ROW if name.startswith("broadcast") else Y}, positive=True) for name in PAIRS],
    *[Case(name, {"data": X}, {"scalar": 0.4}, positive=True) for name in SCALARS],
    *[Case(name, {"data": (4, 3)}, attrs) for name in REDUCTIONS
      for attrs in ({}, {"axis": 1, "keepdims": True}, {"axis": "(0,)", "exclude": True}, {"axis": "()"})],
    *[Case("norm", {"data": X}, attrs) for attrs in ({}, {"ord": 1, "axis": 1}, {"axis": "(1, 2)", "keepdims": True})],
    *[Case(name, {"data": X}, attrs, fixed=("data",)) for name in ("argmax", "argmin")
      for attrs in ({}, {"axis": 1}, {"axis": -1, "keepdims": True})],
    Case("argmax_channel", {"data": (3, 4)}, fixed=("data",)),
    Case("clip", {"data": X}, {"a_min": -0.5, "a_max": 0.25}),
    Case("logical_not", {"data": numbers(0, 1, 2)}, fixed=("data",)),
    Case("_equal", {"lhs": numbers(0, 1, 2), "rhs": numbers(0, 2, 2)}, fixed=("lhs", "rhs")),
    Case("_maximum", {"lhs": numbers(0, 1, 3), "rhs": numbers(0, 2, 2)}),
    Case("_minimum", {"lhs": numbers(0, 1, 3), "rhs": numbers(0, 2, 2)}),
    Case("_mod", {"lhs": X, "rhs": Y}, fixed=("lhs", "rhs")),
    *[Case(name, {"data": numbers(-1, 0.5, 1)}, {"scalar": 0.5}) for name in ("_maximum_scalar", "_minimum_scalar")],
    *[Case("Cast", {"data": X}, {"dtype": dtype}, fixed=("data",)) for dtype in ("int32", "float64", "uint8")],
    Case("amp_cast", {"data": X}, {"dtype": "float16"}, fixed=("data",)),
    Case("add_n", {"a": X, "b": X, "c": X}, {"num_args": 3}),
    Case("where", WHERE, fixed=("condition",)),
    Case("where", {**WHERE, "condition": numbers(0, 1)}, fixed=("condition",)),
    *[Case("smooth_l1", {"data": X}, attrs) for attrs in ({}, {"scalar": 2.0})],
    *[Case("hard_sigmoid", {"data": X}, attrs) for attrs in ({}, {"alpha": 0.5, "beta": 0.3})],
    Case("_contrib_div_sqrt_dim", {"data": X}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_has_mxnet_values_and_gradients(oracle: Oracle, case: Case) -> None:
    check(oracle, case)


def test_every_operator_has_a_case() -> None:
    assert set(arithmetic.OPERATORS) == {case.op for case in CASES}


def test_whole_numbers_stay_whole() -> None:
    data = torch.tensor([1, 2, 3], dtype=torch.int32)
    assert arithmetic.with_scalar(data, scalar=1.0, operation="add").dtype == torch.int32
