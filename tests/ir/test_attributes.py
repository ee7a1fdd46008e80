"""Flags as MXNet writes them."""

from __future__ import annotations

import pytest

from echo.ir.attributes import OF_PLANS, is_true


@pytest.mark.parametrize(
    ("text", "set_"), [("True", True), ("true", True), ("1", True), ("False", False), ("", False)]
)
def test_flags(text: str, set_: bool) -> None:
    assert is_true({"flag": text}, "flag") == set_
    assert not is_true({"flag": text}, "other")


def test_attributes_of_plans_are_private_ones() -> None:
    assert len(set(OF_PLANS)) == len(OF_PLANS)
    assert all(name.startswith("__") and name.endswith("__") for name in OF_PLANS)
