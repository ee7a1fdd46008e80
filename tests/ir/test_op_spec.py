"""Flags as MXNet writes them."""

from __future__ import annotations

import itertools
import math

import mxnet as mx
import pytest

from echo.ir import ops
from echo.ir.op_spec import (
    ALWAYS,
    NEVER,
    OF_PLANS,
    Formula,
    GradientRule,
    OpSpec,
    Read,
    Shape,
    Source,
    is_true,
    own_inputs,
    unless,
    unless_set,
    when,
    when_set,
)


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
def test_malformed_rule_text_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        GradientRule.parse(text)


def counted(*sizes: int) -> float:
    """Two operations in the innermost of these loops."""
    return 2.0 * sum(1 for _ in itertools.product(*map(range, sizes)))


CASES: dict[str, tuple[Formula, list[Shape], Shape, float]] = {
    "convolution": (ops._convolution, [(2, 3, 6, 6), (4, 3, 3, 3)], (2, 4, 4, 4), counted(2, 4, 4, 4, 3, 3, 3)),
    "in groups": (ops._convolution, [(2, 4, 6, 6), (4, 1, 3, 3)], (2, 4, 4, 4), counted(2, 4, 4, 4, 1, 3, 3)),
    "deconvolution": (ops._deconvolution, [(2, 4, 4, 4), (4, 3, 3, 3)], (2, 3, 6, 6), counted(2, 4, 4, 4, 3, 3, 3)),
    "dense": (ops._dense, [(5, 7), (3, 7), (3,)], (5, 3), counted(5, 3, 7)),
    "attention": (ops._attention, [(2, 5, 4), (2, 6, 4), (2, 6, 3)], (2, 5, 3), counted(2, 5, 6, 4 + 3)),
    "layer": (ops._recurrent_layer, [(5, 2, 3), (16, 3), (16,), (16, 4)], (5, 2, 4), counted(5, 2, 16, 3 + 4)),
    "rnn": (ops._rnn, [(5, 2, 3), (28,)], (5, 2, 4), counted(5, 2, 28)),
    "product": (ops._product, [(5, 7), (7, 3)], (5, 3), counted(5, 7, 3)),
    "products": (ops._product, [(2, 5, 7), (2, 7, 3)], (2, 5, 3), counted(2, 5, 7, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_are_counted(name: str) -> None:
    formula, inputs, output, expected = CASES[name]
    assert math.isclose(formula(inputs, output), expected)


def test_a_value_of_an_attribute() -> None:
    first = when("pool_type", "max", "max", "avg")
    assert first({"pool_type": "avg"})
    assert not first({"pool_type": "sum"})
    assert first({})
    assert not when("mode", "training", "always")({"p": "always"})


def test_all_values_but_these() -> None:
    other = unless("mode", "training", "always")
    assert other({})
    assert other({"mode": "training"})
    assert not other({"mode": "always"})


def test_flags_are_read_in_every_spelling() -> None:
    for text in ("True", "true", "TRUE", "1"):
        assert when_set("use_length")({"use_length": text})
        assert not unless_set("use_length")({"use_length": text})
    assert not when_set("use_length")({})
    assert unless_set("use_length")({"use_length": "false"})
    assert when_set("fix_gamma", "True")({})
    assert not unless_set("fix_gamma", "True")({})


def test_any_attributes() -> None:
    for attrs in ({}, {"": ""}, {"mode": "always"}):
        assert ALWAYS(attrs)
        assert not NEVER(attrs)


def test_the_user_is_shown_the_value() -> None:
    assert when("pool_type", "max", "max").shown({}) == "pool_type=max"
    assert when("pool_type", "max", "max").shown({"pool_type": "avg"}) == "pool_type=avg"


def test_facts_are_given_by_their_own_names() -> None:
    row = OpSpec().having(heavy=True, needs_hook=True, outputs=2)
    changed = row.having(heavy=False, draws=ALWAYS)
    assert (row.cost.heavy, row.safety.needs_hook, row.outputs) == (True, True, 2)
    assert (changed.cost.heavy, changed.safety.needs_hook, changed.random.draws) == (False, True, ALWAYS)
    assert OpSpec().having() == OpSpec()


def test_unknown_fact_raises_type_error() -> None:
    with pytest.raises(TypeError, match="unknown facts about an operator: hevy"):
        OpSpec().having(hevy=True)
