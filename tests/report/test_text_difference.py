"""Differences of profiles: what changed the most comes first, and the change is after minus before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.errors import OptionError
from echo.report.profile import Profile
from echo.report.text import difference, difference_rows
from echo.report.usage import ALWAYS, STOCK, Tensor, Usage
from tests.report.profiles import MB, plan_of


def profile(**sizes: int) -> Profile:
    """A stock graph of one operator that holds as many MB in each layer."""
    maps = ((name, size * MB) for name, size in sizes.items())
    tensors = tuple(Tensor(f"{name}_out", "tanh", name, "feature maps", size, 0, 0) for name, size in maps)
    weight = Tensor("weight", "", "weight", "weights", 5 * MB, ALWAYS, 0)
    return Profile({STOCK: Usage(sum(sizes.values()) * MB, {}, ("step",), 1, (*tensors, weight))}, plan_of(), "cpu", {})


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each line of the tables, by the first."""
    cells = ([cell.strip() for cell in line.strip("│┃ ").split("│")] for line in text.splitlines() if "│" in line)
    return {first: rest for first, *rest in cells}


def test_largest_change_comes_first() -> None:
    text = difference(profile(encoder=10, decoder=20, loss=3), profile(encoder=4, decoder=21, loss=3, attention=2))
    found = rows(text)
    assert found["encoder"] == ["10.0", "4.0", "-6.0 (-60 %)"]
    assert found["attention"] == ["0.0", "2.0", "+2.0"]
    assert found["2 more"] == ["8.0", "8.0", "0.0"]  # the loss, and the weight
    assert found["held by the executor"] == ["38.0", "35.0", "-3.0 (-8 %)"]
    assert text.index("encoder") < text.index("attention") < text.index("decoder")


def test_difference_of_equal_profiles_is_zero() -> None:
    same = profile(encoder=10)
    found = rows(difference(same, same))
    assert found["held by the executor"] == ["15.0", "15.0", "0.0"]
    assert found["2 unchanged"] == ["15.0", "15.0", "0.0"]
    assert "encoder" not in found


def test_profiles_without_a_graph_in_common_are_refused() -> None:
    stock = profile(encoder=1)
    other = replace(stock, usages={"mirror": stock.usages[STOCK]})
    with pytest.raises(OptionError, match=r"expected profiles of the same graphs, got \['stock'\] and \['mirror'\]"):
        difference(stock, other)


def test_the_same_as_values() -> None:
    found = difference_rows(profile(encoder=10, loss=3), profile(encoder=4, attention=2))
    by_name = {(row["by"], row["name"]): (row["before"], row["after"]) for row in found}
    assert by_name["total", "held by the executor"] == (18 * MB, 11 * MB)
    assert by_name["kind", "feature maps"] == (13 * MB, 6 * MB)
    assert by_name["layer", "encoder"] == (10 * MB, 4 * MB)
    assert by_name["layer", "attention"] == (0, 2 * MB)
    assert {row["graph"] for row in found} == {STOCK}
    with pytest.raises(OptionError, match="expected profiles of the same graphs"):
        difference_rows(profile(loss=3), replace(profile(loss=3), usages={}))
