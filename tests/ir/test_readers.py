"""Who reads through its inputs alone; `tests/operators` holds the table against MXNet."""

from __future__ import annotations

import pytest

from echo.ir.readers import why_not_reader


@pytest.mark.parametrize(
    ("op", "attrs", "position", "reason"),
    [
        ("tanh", {}, 0, ""),
        ("Custom", {}, 0, "Custom is not known to read its inputs through its inputs alone"),
        ("Deconvolution", {}, 0, ""),
        ("Deconvolution", {}, 1, "input 1 of Deconvolution must not move"),
        ("Convolution", {}, 1, ""),
        ("SoftmaxOutput", {"out_grad": "False"}, 0, ""),
        ("SoftmaxOutput", {"out_grad": "True"}, 0, "the gradient of SoftmaxOutput with out_grad=True depends on"),
        ("softmax", {"use_length": "1"}, 1, "the gradient of softmax with use_length=1 depends on"),
        ("LeakyReLU", {"act_type": "leaky"}, 0, ""),
        ("LeakyReLU", {"act_type": "prelu"}, 0, "the gradient of LeakyReLU with act_type=prelu depends on"),
        ("LeakyReLU", {"act_type": "rrelu"}, 0, "LeakyReLU with act_type=rrelu was never tried"),
    ],
)
def test_reasons(op: str, attrs: dict[str, str], position: int, reason: str) -> None:
    found = why_not_reader(op, attrs, position)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
