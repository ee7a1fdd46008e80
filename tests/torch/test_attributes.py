"""Attributes of MXNet's operators, as a symbol's JSON holds them."""

from __future__ import annotations

from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch.attributes import Ends, Shape, attributes_of, read_attributes  # noqa: E402


def function(data: Any, *, count: int, rate: float = 1.0, flag: bool = False, size: Shape = (), ends: Ends = (),
             axis: int | None = None, kind: Literal["a", "b"] = "a", dtype: torch.dtype = torch.float32,
             training: bool, like: Any) -> Any:  # fmt: skip
    """Takes one attribute of each kind."""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "1e-05", 1e-5), ("rate", "inf", float("inf")), ("rate", "3", 3.0), ("flag", "True", True),
        ("flag", "1", True), ("flag", "false", False), ("flag", "0", False), ("size", "(2, 3)", (2, 3)),
        ("size", "[0, 4]", (0, 4)), ("size", "(2,)", (2,)), ("size", "2", (2,)), ("size", "()", ()),
        ("size", "(2L, 3L)", (2, 3)), ("ends", "(None, 1, None)", (None, 1, None)), ("axis", "None", None),
        ("axis", "-1", -1), ("kind", "b", "b"), ("dtype", "int32", torch.int32), ("dtype", "float16", torch.float16),
    ],
)  # fmt: skip
def test_text_is_read_by_annotation(name: str, text: str, value: Any) -> None:
    assert read_attributes(function, {"count": "3", name: text}) == ({"count": 3, name: value}, [])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("rate", "fast", "float"), ("flag", "2", "bool"), ("size", "(2, None)", "Shape"), ("size", "(2, 3", "Shape"),
        ("size", "'ab'", "Shape"), ("axis", "one", "int | None"), ("kind", "c", "Literal['a', 'b']"),
        ("dtype", "nn", "torch.dtype"), ("ends", "(1.5,)", "Ends"),
    ],
)  # fmt: skip
def test_invalid_text_is_a_fault(name: str, text: str, expected: str) -> None:
    _, (fault,) = read_attributes(function, {"count": "3", name: text})
    assert fault.replace('"', "'") == f"attribute {name}: expected {expected}, got {text!r}".replace('"', "'")


def test_missing_and_unknown_attributes_are_faults() -> None:
    _, faults = read_attributes(function, {"other": "1", "training": "True", "__lr_mult__": "2", "workspace": "9"})
    assert faults == ["attribute other='1' is unknown", "attribute training='True' is unknown",
                      "attribute count is missing"]  # fmt: skip


def test_keywords_that_the_graph_gives_are_no_attributes() -> None:
    assert not {"training", "like", "data"} & set(attributes_of(function))
    assert attributes_of(torch.tanh) == {}
