"""The comparison of two trainings: equal values, and tolerances."""

import numpy as np
import pytest

from projects.compare import FLOOR, different, worst


def test_equal_arrays_do_not_differ_nan_included() -> None:
    assert different({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, np.nan])}) == []


@pytest.mark.parametrize(
    "other",
    [np.array([1.0, np.nextafter(2.0, 3.0)]), np.array([1.0]), np.array([1, 2]), np.array([1.0, -2.0]), None],
    ids=["last bit", "shape", "type", "sign", "missing"],
)
def test_every_bit_counts(other: "np.ndarray | None") -> None:
    found = {} if other is None else {"a": other}
    assert different({"a": np.array([1.0, 2.0])}, found) == ["a"]


def test_the_sign_of_zero_counts() -> None:
    assert different({"a": np.array([0.0])}, {"a": np.array([-0.0])}) == ["a"]


def test_value_of_one_run_alone_differs() -> None:
    assert different({}, {"weight/new": np.zeros(1)}) == ["weight/new"]


def test_the_worst_is_a_part_of_the_largest_element() -> None:
    stock = {"gradient/a": np.array([4.0, 0.0]), "gradient/b": np.array([1.0]), "loss/0": np.array([1.0])}
    other = {"gradient/a": np.array([4.0, 0.1]), "gradient/b": np.array([1.01]), "loss/0": np.array([9.0])}
    error, name = worst(stock, other, "gradient/")
    assert (round(error, 6), name) == (0.025, "gradient/a")


def test_a_gradient_that_is_only_rounding_is_measured_by_the_model() -> None:
    stock = {"gradient/a": np.array([1.0]), "gradient/zero": np.array([1e-9])}
    other = {"gradient/a": np.array([1.0]), "gradient/zero": np.array([-1e-9])}
    assert worst(stock, other, "gradient/").error == pytest.approx(2e-9 / FLOOR)


@pytest.mark.parametrize(("name", "part"), [("gradient/keys_bias", 0.02), ("gradient/other", 2.0)])
def test_a_bias_whose_terms_cancel_is_held_against_its_weight(name: str, part: float) -> None:
    weight = np.array([1e-2])
    stock = {"gradient/keys_weight": weight, name: np.array([1e-5])}
    other = {"gradient/keys_weight": weight, name: np.array([3e-5])}
    assert worst(stock, other, "gradient/") == (pytest.approx(part), name)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_infinitely_off(value: float) -> None:
    assert worst({"loss/0": np.array([1.0])}, {"loss/0": np.array([value])}, "loss/").error == np.inf


def test_a_missing_array_is_infinitely_off() -> None:
    assert worst({"loss/0": np.array([1.0])}, {}, "loss/").error == np.inf
