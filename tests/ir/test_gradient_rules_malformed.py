"""The hook refuses exchanges of a gradient's inputs that are malformed or that echo never makes."""

from __future__ import annotations

import mxnet as mx
import pytest

from tests.support.gradient_cases import CASES, apply_gradient_rules, case, run
from tests.support.training import assert_same

MALFORMED = [
    "",
    "a",
    "a>b",
    "a:0>b",
    "a>b:",
    "a>b:0,",
    "a>b:x",
    "a>b:0,f",
    "a>b:0;1",
    "a>b:+0",
    "a>b: 0",
    "a>b:-1",
    "a>b:0x",
    "a>b:fs",
    "a>b:0,99999999999999999999,2",
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_attributes_are_refused(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"'under': expected OPERATOR>OPERATOR:INPUTS in __echo_gradient__"):
        run(apply_gradient_rules(case(CASES["tanh"]), text))


@pytest.mark.parametrize("text", ["0,3,2", "0,f1,2", "0,999999999,2"])
def test_inputs_that_are_not_there_are_refused(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"under_backward' .*_backward_Activation.* has \d to read, expected one"):
        run(apply_gradient_rules(case(CASES["tanh"]), f"_backward_Activation>_backward_Activation:{text}"))


@pytest.mark.parametrize("text", ["0,2", "0,2,2,2", "0"])
def test_an_operator_reads_as_many_inputs_as_before(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"reads 3 arrays, expected as many in __echo_gradient__, got \d"):
        run(apply_gradient_rules(case(CASES["tanh"]), f"_backward_Activation>_backward_Activation:{text}"))


@pytest.mark.parametrize("text", ["_backward_Activation>_backward_exp:0,1", "_backward_Activation>negative:0", "a>b:0"])
def test_exchanges_that_echo_never_makes_are_refused(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"'under': echo does not know that '.*' may compute what"):
        run(apply_gradient_rules(case(CASES["tanh"]), text))


def test_another_gradient_is_left_alone() -> None:
    found = case(CASES["tanh"])
    assert_same(run(apply_gradient_rules(found, "_backward_softmax>_backward_softmax:7")), run(found.symbol))
