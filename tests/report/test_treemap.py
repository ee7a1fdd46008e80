"""The treemap: leaves add up to what is held at the peak, and Vega draws them."""

from __future__ import annotations

import pytest

from echo.report.treemap import treemap
from echo.report.usage import GAPS, layer_by
from tests.report.profiles import made_up

convert = pytest.importorskip("vl_convert", reason="needs the extra report")


@pytest.mark.parametrize("by", [None, "layer[0-9]"])
def test_leaves_add_up(by: str | None) -> None:
    usage = made_up(2000).usages["stock"]
    spec = treemap(usage, layer_by(by)) if by else treemap(usage)
    leaves = [each for each in spec["data"][0]["values"] if "kind" in each]
    held = usage.total - usage.by_kind[GAPS]
    assert sum(leaf["mb"] for leaf in leaves) == pytest.approx(held / 10**6, abs=0.2)
    layers = {leaf["layer"] for leaf in leaves}
    assert len(layers) == (61 if by is None else 11)
    more = len({tensor.layer for tensor in usage.at_peak}) - 60
    assert (f"{more} more layers" in layers) == (by is None)
    parents = {each["id"] for each in spec["data"][0]["values"]}
    assert all(each["parent"] in parents | {""} for each in spec["data"][0]["values"])


def test_vega_draws_it() -> None:
    svg = convert.vega_to_svg(treemap(made_up(12).usages["echo"]))
    assert svg.count("<path") > 8
    assert "layer5" in svg
    assert "NaN" not in svg


def test_areas_of_two_graphs_have_one_scale_and_names_their_megabytes() -> None:
    usages = made_up(300).usages
    totals = {name: sum(usage.layers().values()) for name, usage in usages.items()}
    most = max(totals.values())
    specs = {name: treemap(usage, most=most) for name, usage in usages.items()}
    for name, total in totals.items():
        assert specs[name]["height"] == pytest.approx(380 * total / most, abs=1)
        layers = [row for row in specs[name]["data"][0]["values"] if "total" in row]
        assert sum(row["total"] for row in layers) == pytest.approx(total / 10**6, abs=0.1)
