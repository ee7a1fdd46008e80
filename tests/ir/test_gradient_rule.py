"""Gradient rules as texts, for the native hook and for files, and back."""

from __future__ import annotations

import pytest

from echo.ir.gradient_rule import GradientRule, Read, Source, own_inputs

RULES = {
    "_backward_tanh>_backward_tanh:0,2,2": GradientRule("_backward_tanh", "_backward_tanh", own_inputs(0, 2, 2)),
    "_backward_a>_backward_b:0,f1": GradientRule(
        "_backward_a", "_backward_b", (*own_inputs(0), Read(Source.FORWARD, 1))
    ),
    "_backward_a>_backward_a:0,s,13": GradientRule(
        "_backward_a", "_backward_a", (Read(Source.GRADIENT, 0), Read(Source.SUM), Read(Source.GRADIENT, 13))
    ),
}


@pytest.mark.parametrize("text", RULES)
def test_texts_are_read_back(text: str) -> None:
    assert GradientRule.parse(text) == RULES[text]
    assert RULES[text].text == text
    assert RULES[text].exchange == text.partition(":")[0]
    assert RULES[text].splits == ("s" in text.partition(":")[2])


@pytest.mark.parametrize("text", ["", "a>b", "a>b:", "a>b:x", "a>b:0,", "a>b:f", "a>b:s1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        GradientRule.parse(text)


def test_last_bits_change_where_tanh_is_read_from_its_output() -> None:
    activation = "_backward_Activation"
    assert not GradientRule(activation, "_backward_tanh", own_inputs(0, 1)).exact
    assert GradientRule(activation, "_backward_sigmoid", own_inputs(0, 1)).exact
    assert GradientRule("_backward_tanh", "_backward_tanh", own_inputs(0, 1)).exact
