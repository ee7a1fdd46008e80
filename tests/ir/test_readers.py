"""What is said of operators that must not read what moved; ``tests/operators`` holds the table against MXNet."""

from __future__ import annotations

from typing import Mapping

import pytest

from echo.ir.readers import why_not_reader


@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("RNN", {}, "RNN is not known to read its inputs through its inputs alone"),
        ("MyOwn", {}, "MyOwn is not known to read its inputs through its inputs alone"),
        ("LeakyReLU", {"act_type": "prelu"}, "the gradient of LeakyReLU with act_type=prelu hangs on working in place"),
        ("softmax", {"use_length": "True"}, "the gradient of softmax with use_length=True hangs on working in place"),
        ("LeakyReLU", {"act_type": "rrelu"}, "LeakyReLU with act_type=rrelu was never tried"),
        ("LeakyReLU", {}, ""),
        ("softmax", {"use_length": "False"}, ""),
        ("FullyConnected", {}, ""),
    ],
)
def test_the_reason(op: str, attrs: Mapping[str, str], reason: str) -> None:
    assert why_not_reader(op, attrs) == reason


def test_inputs_that_must_not_move() -> None:
    assert why_not_reader("Deconvolution", {}, 0) == ""
    assert why_not_reader("Deconvolution", {}, 1) == "input 1 of Deconvolution must not move"
    assert why_not_reader("Convolution", {}, 1) == ""
