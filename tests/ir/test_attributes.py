"""Flags as MXNet writes them."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.ir.attributes import OF_PLANS, is_true


@pytest.mark.parametrize(
    ("text", "set_"),
    [("True", True), ("true", True), ("TRUE", True), ("1", True), ("False", False), ("FALSE", False), ("0", False)],
)
def test_flags_are_read_as_mxnet_reads_them(text: str, set_: bool) -> None:
    total = mx.sym.sum(mx.sym.var("x"), axis=0, keepdims=True).tojson()
    assert total.count('"keepdims": "True"') == 1
    (shape,) = mx.sym.load_json(total.replace('"keepdims": "True"', f'"keepdims": "{text}"')).infer_shape(x=(2, 3))[1]
    assert (len(shape) == 2) == set_
    assert is_true({"flag": text}, "flag") == set_


def test_a_flag_that_is_not_there_has_its_default() -> None:
    assert not is_true({"other": "True"}, "flag")
    assert is_true({"other": "False"}, "flag", "True")


def test_attributes_of_plans_are_private_ones() -> None:
    assert len(set(OF_PLANS)) == len(OF_PLANS)
    assert all(name.startswith("__") and name.endswith("__") for name in OF_PLANS)
