"""Options that make no sense: errors say what was expected and what was got."""

from __future__ import annotations

import re
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import OptionError
from tests.support.small_network import SHAPES, network

pytestmark = pytest.mark.usefixtures("cheap_planning")


@pytest.mark.parametrize("option", ["keep", "recompute"])
@pytest.mark.parametrize("pattern", ["nothing", "tanh9", "Convolution", "TANH0", "[", ""])
def test_patterns_that_match_nothing(option: str, pattern: str) -> None:
    wanted = rf"{option}: {re.escape(repr(pattern))} matches no node.*FullyConnected, LayerNorm"
    with pytest.raises(OptionError, match=wanted):
        echo.plan(network(), **{option: ["tanh1", pattern]}, **SHAPES)
    optimized = echo.optimize(network(), **{option: pattern})
    with pytest.raises(OptionError, match=wanted):
        optimized.simple_bind(mx.cpu(), grad_req="write", **SHAPES)


def test_variables_are_no_nodes_to_keep() -> None:
    with pytest.raises(OptionError, match="'fc0_weight' matches no node"):
        echo.plan(network(), keep="fc0_weight", **SHAPES)


def test_keep_and_recompute_contradict_each_other() -> None:
    with pytest.raises(
        OptionError, match=r"'tanh1' in one of keep and recompute, got both keep 'tanh\*' and recompute 'tanh1'"
    ):
        echo.plan(network(), keep="tanh*", recompute="tanh1", **SHAPES)


@pytest.mark.parametrize(
    ("name", "reason"), [("softmax", "an output of the symbol"), ("SoftmaxOutput", "an output of the symbol")]
)
def test_recompute_of_an_output_raises_option_error(name: str, reason: str) -> None:
    with pytest.raises(OptionError, match=rf"'softmax' \(SoftmaxOutput\) cannot be recomputed: .*{reason}"):
        echo.plan(network(), recompute=name, **SHAPES)


@pytest.mark.parametrize("option", ["keep", "recompute"])
@pytest.mark.parametrize("value", [3, [3], None, {"tanh0": 1.5}.items()])
def test_patterns_that_are_no_names(option: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{option}: expected names or patterns"):
        echo.optimize(network(), **{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polcy": "search"}, "unknown option 'polcy', expected one of policy, max_overhead"),
        ({"dta": (3, 4)}, r"unknown option 'dta', .*, or the name of an array of the symbol; did you mean data\?"),
        ({"policy": "magic"}, "policy: expected one of search, echo, .* got 'magic'"),
        ({"policy": 3}, "policy: expected one of search, echo, .* got 3"),
        ({"memory_budget": 10**400}, "memory_budget: expected whole bytes"),
        ({"max_planning": 10**400}, "max_planning: expected seconds"),
        ({"max_overhead": 10**400}, "max_overhead: expected a fraction"),
        ({"max_overhead": -0.1}, "max_overhead: expected a fraction .* got -0.1"),
        ({"max_overhead": "10%"}, "max_overhead: expected a fraction .* got '10%'"),
        ({"max_overhead": float("nan")}, "max_overhead: expected a fraction .* got nan"),
        ({"max_overhead": True}, "max_overhead: expected a fraction .* got True"),
        ({"max_time": 0}, "max_time: expected a multiple of the original step such as 1.0, or None, got 0"),
        ({"max_time": float("nan")}, "max_time: expected a multiple .* got nan"),
        ({"max_time": "120%"}, "max_time: expected a multiple .* got '120%'"),
        ({"max_time": True}, "max_time: expected a multiple .* got True"),
        ({"heavy": "nevr"}, "heavy: expected 'auto' or 'never', got 'nevr'"),
        ({"heavy": False}, "heavy: expected 'auto' or 'never', got False"),
        ({"fuse": "yes"}, "fuse: expected True, False or 'memory', got 'yes'"),
        ({"strict": 2}, "strict: expected True or False, got 2"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    for call in (echo.plan, echo.optimize):
        with pytest.raises(OptionError, match=message):
            call(network(), **options, **SHAPES)


def test_option_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="unknown option"):
        echo.optimize(network(), budget=3)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"grad_req": "wrte"}, OptionError),
        ({"grad_req": {"fc0_weight": "twice"}}, OptionError),
        ({"grad_req": ["write"]}, OptionError),
        ({"ctx": "toaster"}, OptionError),
        ({"type_dict": {"data": "float99"}}, OptionError),
    ],
)
def test_ways_to_bind_that_make_no_sense(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        echo.plan(network(), **given, **SHAPES)
