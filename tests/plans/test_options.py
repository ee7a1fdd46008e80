"""Options are checked where they enter, and say what was expected."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from echo import policies
from echo.errors import EchoError, OptionError
from echo.plans.options import DEFAULT_MAX_OVERHEAD, POLICY_NAMES, Options, budget_bytes


def test_default_options_are_those_documented() -> None:
    options = Options()
    assert (options.policy, options.overhead_bound, options.memory_budget) == ("search", DEFAULT_MAX_OVERHEAD, None)
    assert (options.keep, options.recompute, options.fuse, options.strict) == ((), (), True, False)
    assert DEFAULT_MAX_OVERHEAD == 0.10


def test_options_are_values() -> None:
    assert Options.of(keep=["a", "b"]) == Options(keep=("a", "b"))
    assert len({Options(), Options(), Options(max_overhead=0.2)}) == 2
    with pytest.raises(FrozenInstanceError):
        Options().policy = "echo"  # type: ignore[misc]


# Time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({}, 0.10),
        ({"max_overhead": "auto"}, 0.10),
        ({"max_overhead": None}, None),
        ({"max_overhead": 0}, 0),
        ({"max_overhead": 0.25}, 0.25),
        ({"max_overhead": 3}, 3),
        ({"memory_budget": "6GB"}, None),
        ({"memory_budget": "6GB", "max_overhead": "auto"}, None),
        ({"max_time": 1.0}, None),
        ({"max_time": 1.0, "max_overhead": 0.05}, 0.05),
        ({"memory_budget": "6GB", "max_overhead": 0.05}, 0.05),
    ],
)
def test_bound_on_time(given: dict[str, Any], bound: float | None) -> None:
    assert Options.of(**given).overhead_bound == bound


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan"), "0.1", "none", True, [0.1], (0.1,), {}])
def test_bound_that_is_none(value: Any) -> None:
    with pytest.raises(OptionError, match=r"max_overhead: expected a fraction .* got"):
        Options(max_overhead=value)


# Memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 << 30, 1 << 30),
        (2.5e9, 2_500_000_000),
        (0.5, 500_000),
        (1, 1_000_000),
        (1.0, 1_000_000),
        (2, 2),
        (2.0, 2),
        ("6GB", 6 * 10**9),
        ("6 gb", 6 * 10**9),
        (" 6GiB ", 6 << 30),
        ("6g", 6 * 10**9),
        ("1.5G", 1_500_000_000),
        ("512MB", 512_000_000),
        ("512MiB", 512 << 20),
        ("512m", 512_000_000),
        ("10kB", 10_000),
        ("1TB", 10**12),
        ("50%", 500_000),
        ("100%", 1_000_000),
        ("12.5 %", 125_000),
        ("123456", 123456),
        ("100b", 100),
        ("0.5", 500_000),
        ("1", 1_000_000),
        ("1b", 1),
    ],
)
def test_budgets_in_bytes(value: Any, expected: int) -> None:
    assert budget_bytes(value, stock=1_000_000) == expected
    assert Options(memory_budget=value).memory_budget == value


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        -0.5,
        0.0,
        float("inf"),
        float("nan"),
        1.5,
        2.000001,
        "1.5",
        "0%",
        "101%",
        "nan",
        "%",
        True,
        [6],
        "",
        "G",
        "six GB",
        "-6GB",
        "6XB",
        "6 G B",
        "6,5G",
        "0",
        "0.3b",
        np.bool_(True),
        np.float64("nan"),
    ],
)
def test_budget_that_is_none(value: Any) -> None:
    with pytest.raises(OptionError, match="memory_budget: expected whole bytes, a size such as '6GB', or a fraction"):
        Options(memory_budget=value)


def test_numbers_of_numpy_are_numbers() -> None:
    options = Options(max_overhead=np.float64(0.05), memory_budget=np.int32(7), max_planning=np.float64(3))
    assert options.key == Options(max_overhead=0.05, memory_budget=7, max_planning=3.0).key
    assert Options(memory_budget=np.float32(0.5)).memory_budget == 0.5
    assert Options(optimizer_states=np.int64(2)).optimizer_states == 2


# Names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["keep", "recompute"])
def test_patterns_of_any_sequence_become_a_tuple(name: str) -> None:
    assert getattr(Options.of(**{name: "conv*"}), name) == ("conv*",)
    assert getattr(Options.of(**{name: ["a", "b"]}), name) == ("a", "b")
    assert getattr(Options.of(**{name: (item for item in "ab")}), name) == ("a", "b")


@pytest.mark.parametrize("name", ["keep", "recompute"])
@pytest.mark.parametrize("value", [[1], [None], [b"conv"], b"conv", 5, None])
def test_patterns_must_be_texts(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{name}: expected names or patterns, got"):
        Options.of(**{name: value})


def test_a_fraction_of_nothing_is_a_budget() -> None:
    assert budget_bytes(0.5, 0) == 0
    assert budget_bytes(1, 300) == 300
    assert budget_bytes(0.5, 300) == 150


def test_policies_have_the_names_of_the_registry() -> None:
    assert tuple(policy.name for policy in policies.POLICIES) == POLICY_NAMES


@pytest.mark.parametrize("value", [None, 5, ["search"], "best", "Search"])
def test_policy_must_be_a_name(value: Any) -> None:
    with pytest.raises(OptionError, match=r"policy: expected one of search, echo, .*, got"):
        Options(policy=value)


@pytest.mark.parametrize("name", ["exact", "strict"])
@pytest.mark.parametrize("value", ["no", 2, None])
def test_switches_must_be_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{name}: expected True or False, got"):
        Options.of(**{name: value})


@pytest.mark.parametrize("value", ["no", "Memory", 0, 1, 2, None, ("memory",)])
def test_fuse_is_a_switch_or_memory(value: Any) -> None:
    with pytest.raises(OptionError, match="fuse: expected True, False or 'memory', got"):
        Options.of(fuse=value)


def test_unknown_option_is_named_with_those_known() -> None:
    expected = r"unknown option 'max_overhed', expected one of policy, .*; did you mean max_overhead"
    with pytest.raises(OptionError, match=expected):
        Options.of(max_overhed=0.1)


def test_errors_are_values_and_echos_own() -> None:
    with pytest.raises(ValueError, match="max_overhead") as caught:
        Options(max_overhead=-1)
    assert isinstance(caught.value, EchoError)
