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
    assert sum(leaf["mb"] for leaf in leaves) == pytest.approx(held / 2**20, abs=0.2)
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
