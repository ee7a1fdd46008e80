"""Operators that make and move elements, against MXNet."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch.operators import shapes  # noqa: E402
from tests.torch.oracle import Case, Oracle, check  # noqa: E402

X = (2, 3, 4, 5)


def _of(op: str, *attrs: dict[str, object], data: tuple[int, ...] = X, outputs: int = 1) -> list[Case]:
    return [Case(op, {"data": data}, each, outputs=outputs) for each in attrs]


CASES = [
    *[Case(op, {}, attrs) for op in ("_zeros", "_ones") for attrs in ({"shape": (2, 3)}, {"shape": "[4]",
         "dtype": "int32"})],
    Case("_full", {}, {"shape": (2, 3), "value": 1.5}),
    *[Case("_arange", {}, attrs) for attrs in (
        {"start": 0, "stop": 5}, {"start": 5, "stop": None}, {"start": 1, "stop": 7.5, "step": 2.0, "repeat": 2},
        {"start": 3, "stop": 0, "step": -1, "dtype": "int32"})],
    *[Case("_contrib_arange_like", {"data": X}, attrs, fixed=("data",)) for attrs in (
        {}, {"axis": 1}, {"axis": -1, "start": 2, "step": 0.5})],
    Case("shape_array", {"data": X}, fixed=("data",)),
    *_of("Reshape", *[{"shape": shape} for shape in (
        (-1,), (0, -1), (-3, 0, 0), (0, -4, 1, -1, 0, 0), (0, -4, -1, 3, -2), (-2,), (2, -2), (0, -3, 5), (2, 60)
        )], *[{"shape": shape, "reverse": True} for shape in ((-1, 0), (-1, 0, 0), (-1, 4, 5), (0, -3, -1))]),
    Case("reshape_like", {"lhs": (4, 30), "rhs": X}, fixed=("rhs",)),
    Case("reshape_like", {"lhs": (30, 7), "rhs": (15, 2, 4)}, {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 0,
         "rhs_end": 2},
         fixed=("rhs",)),
    Case("reshape_like", {"lhs": (3, 8), "rhs": (9, 2, 4)}, {"lhs_begin": -1, "lhs_end": None, "rhs_begin": 1},
         fixed=("rhs",)),
    *_of("Flatten", {}), *_of("expand_dims", {"axis": 0}, {"axis": -1}),
    *_of("squeeze", {}, {"axis": 0}, {"axis": (0, 2)}, data=(1, 3, 1, 2)), *_of("squeeze", {}, data=(1, 1)),
    *_of("transpose", {}, {"axes": (0, 2, 1, 3)}), *_of("SwapAxis", {"dim1": 0, "dim2": 2}),
    *_of("slice", {"begin": (0, 1), "end": (2, 3)}, {"begin": "(None, 1, -3)", "end": "(None, None, -1)"},
         {"begin": (1, 2, 3), "end": "(None, 0, None)", "step": (-1, -1, 1)}, {"begin": "(None, None)",
              "end": "(None, None)",
         "step": "(None, -2)"}, {"begin": (0, 0, 0, 0), "end": (2, 3, 4, 5), "step": (1, 2, 3, 2)}),
    *_of("slice_axis", {"axis": 1, "begin": 1, "end": None}, {"axis": -1, "begin": -4, "end": -1}),
    *[Case("slice_like", {"data": X, "shape_like": (1, 2, 3, 3)}, attrs, fixed=("shape_like",))
      for attrs in ({}, {"axes": (0, 2)}, {"axes": (0, 0, -1)})],
    *_of("broadcast_to", {"shape": (0, 3, 4)}, {"shape": "[2, 3, 4]"}, data=(2, 1, 4)),
    *_of("broadcast_axis", {"axis": 1, "size": 3}, {"axis": (1, 2), "size": (2, 3)}, data=(2, 1, 1)),
    Case("broadcast_like", {"lhs": (2, 1, 4), "rhs": (2, 3, 4)}, fixed=("rhs",)),
    Case("broadcast_like", {"lhs": (2, 1, 4), "rhs": (5, 3)}, {"lhs_axes": (1,), "rhs_axes": (-1,)}, fixed=("rhs",)),
    *_of("tile", {"reps": (2,)}, {"reps": (2, 1, 3)}, {"reps": (2, 1, 1, 1)}, data=(2, 3)),
    *_of("repeat", {"repeats": 2}, {"repeats": 3, "axis": 1}, {"repeats": 2, "axis": -1}),
    *_of("reverse", {"axis": 1}, {"axis": (0, 2)}),
    *[Case(op, {"a": (2, 3), "b": (2, 3), "c": (2, 3)}, {"num_args": 3, name: axis})
      for op, name in (("Concat", "dim"), ("stack", "axis"), ("_rnn_param_concat", "dim")) for axis in (0, 1, -1)
      if op != "_rnn_param_concat" or axis == 0],
    Case("Concat", {"a": (2, 3), "b": (2, 1)}, {"num_args": 2}),
    *_of("SliceChannel", {"num_outputs": 3}, {"num_outputs": 3, "squeeze_axis": True}, outputs=3),
    *_of("SliceChannel", {"num_outputs": 2, "axis": -2}, outputs=2),
    *_of("_split_v2", {"indices": "(0, 1, 3)", "axis": 2, "sections": 0}, {"indices": "()", "axis": 1, "sections": 3,
         "squeeze_axis": True}, outputs=3),
    *_of("Pad", {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 2, 3, 0), "constant_value": 1.5},
         *[{"mode": mode, "pad_width": (0, 0, 0, 0, 1, 2, 3, 0)} for mode in ("edge", "reflect")]),
    *_of("depth_to_space", {"block_size": 2}, data=(2, 8, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_has_mxnet_values_and_gradients(oracle: Oracle, case: Case) -> None:
    check(oracle, case)


def test_every_operator_has_a_case() -> None:
    assert set(shapes.OPERATORS) == {case.op for case in CASES}


def test_sizes_of_0_become_those_of_the_other_arrays() -> None:
    state = shapes.zeros(shape=(0, 3), like=torch.ones(1))
    assert shapes.concat(torch.ones(4, 2), state, dim=1).shape == (4, 5)
    assert shapes.stack(state, torch.ones(4, 3), axis=1).shape == (4, 2, 3)
