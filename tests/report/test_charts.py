"""Charts: their numbers are the profile's, and Vega-Lite takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.report.charts import (
    GRAPH_COLORS,
    KIND_COLORS,
    ROLE_COLORS,
    VEGA_LITE,
    by_kind,
    by_layer,
    frontier,
    in_megabytes,
    over_step,
    timeline,
    timeline_rows,
)
from echo.report.segment import RECOMPUTED, STASHED
from echo.report.usage import Tensor, Usage, layer_of
from tests.report.profiles import made_up

convert = pytest.importorskip("vl_convert", reason="needs the extra report")


def test_lines_are_the_bytes_alive() -> None:
    profile = made_up(60)
    rows = timeline_rows(profile)
    for name, usage in profile.usages.items():
        points = [row for row in rows if row["graph"] == name]
        assert [row["mb"] for row in points] == [in_megabytes(size) for size in usage.live]
        assert (points[0]["at"], points[-1]["at"]) == (0, 1)
        assert [row["operator"] for row in points] == list(usage.steps)
        assert sum(row["pass"] == "forward" for row in points) == usage.forward_steps


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_arrays_alive(seed: int) -> None:
    profile = made_up(80, seed)
    for name, usage in profile.usages.items():
        for step, row in enumerate(row for row in timeline_rows(profile) if row["graph"] == name):
            alive = [tensor for tensor in usage.passing if tensor.first <= step <= tensor.last]
            largest = sorted((tensor.bytes for tensor in alive), reverse=True)[:3]
            said = [part.rpartition(" ")[0].rpartition(" ") for part in row["largest"].split(", ")]
            assert [float(size) for _, _, size in said] == [round(size / 10**6, 1) for size in largest]
            assert {each for each, _, _ in said} <= {tensor.name for tensor in alive}


def test_long_steps_keep_their_peak() -> None:
    profile = made_up(20_000)
    rows = timeline_rows(profile)
    assert len(rows) == 2 * 1500
    for name, usage in profile.usages.items():
        points = [row for row in rows if row["graph"] == name]
        assert max(row["mb"] for row in points) == in_megabytes(usage.live_peak)
        assert [row["at"] for row in points] == sorted(row["at"] for row in points)


def test_bars_add_up() -> None:
    profile = made_up(50)
    rows = by_kind(profile)["data"]["values"]
    for name, usage in profile.usages.items():
        assert sum(row["mb"] for row in rows if row["graph"] == name) == pytest.approx(usage.total / 10**6, abs=0.01)
    layers = by_layer(profile, layer_of)["data"]["values"]
    assert len({row["layer"] for row in layers}) == 10
    largest = {row["layer"] for row in layers}
    assert "weight" in largest


def test_kind_that_no_bar_shows_is_not_in_the_legend() -> None:
    def usage(inputs: int) -> Usage:
        sizes = {"feature maps": 9 * 10**6, "inputs": inputs}
        return Usage(0, {}, ("step",), 1, tuple(Tensor(kind, "", kind, kind, sizes[kind], 0, 0) for kind in sizes))

    for inputs, kinds in ((5_000, ["feature maps"]), (50_000, ["feature maps", "inputs"])):
        profile = replace(made_up(10), usages={"stock": replace(usage(inputs), planned=9 * 10**6 + inputs)})
        for spec in (by_kind(profile), by_layer(profile, layer_of)):
            assert spec["encoding"]["color"]["scale"]["domain"] == kinds
            assert {row["kind"] for row in spec["data"]["values"]} == set(kinds)


def test_layers_come_by_what_they_hold_in_the_graph_where_that_is_most() -> None:
    def usage(**sizes: int) -> Usage:
        return Usage(100, {}, ("step",), 1, tuple(Tensor(name, "", name, "maps", sizes[name], 0, 0) for name in sizes))

    profile = replace(made_up(10), usages={"stock": usage(tanh=56, softmax=36), "echo": usage(tanh=0, softmax=36)})
    assert by_layer(profile, layer_of)["encoding"]["row"]["sort"] == ["tanh", "softmax"]


def test_vega_lite_draws_them() -> None:
    profile = made_up(50)
    for spec in (
        timeline(profile),
        by_kind(profile),
        by_layer(profile, layer_of),
        frontier(profile.frontier, {"total": 10**6, "time": 1.1}, 3 * 10**6, 0.1),
    ):
        svg = convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
        assert svg.count("<path") > 5
        assert "NaN" not in svg


def test_colors_stand_for_one_thing_each() -> None:
    of_maps = {ROLE_COLORS[STASHED], ROLE_COLORS[RECOMPUTED]}
    assert of_maps == {KIND_COLORS["feature maps"], KIND_COLORS["recomputed maps"]}
    colors = [*GRAPH_COLORS.values(), *KIND_COLORS.values(), *(set(ROLE_COLORS.values()) - of_maps)]
    assert len(set(colors)) == len(colors)


def test_peaks_are_named_and_do_not_cover_each_other() -> None:
    profile = made_up(50)
    lines, peaks = over_step(profile)["layer"]
    rows = {row["graph"]: row for row in peaks["data"]["values"]}
    for name, usage in profile.usages.items():
        assert rows[name]["mb"] == in_megabytes(max(usage.live))
        assert rows[name]["label"] == f"{name}: {rows[name]['mb']:,.1f} MB"
    twice = replace(profile, usages={"stock": profile.usages["echo"], "echo": profile.usages["echo"]})
    one, other = over_step(twice)["layer"][1]["data"]["values"]
    assert one["mb"] == other["mb"]
    assert abs(one["over"] - other["over"]) >= 0.069 * one["mb"]
    assert lines["mark"]["type"] == "area"


def test_names_of_peaks_have_room_below_the_top_of_the_scale() -> None:
    """Vega-Lite cuts off what stands outside of the scales of a chart that zooms."""
    for profile in (made_up(50), replace(made_up(50), usages={})):
        detail, _ = timeline(profile)["vconcat"]
        lines, peaks, _ = detail["layer"]
        bottom, top = lines["encoding"]["y"]["scale"]["domain"]
        assert peaks["encoding"]["y"]["scale"] == lines["encoding"]["y"]["scale"]
        assert bottom == 0 < top
        for peak in peaks["data"]["values"]:
            assert (1 - peak["over"] / top) * detail["height"] >= 18  # pixels: 9 up to the text, and its height


def test_frontier_is_in_milliseconds() -> None:
    spec = frontier(
        [{"total": 10**7, "time": 1.5, "budget": 11 * 10**6}], {"total": 2 * 10**7, "time": 0.9}, 10**8, 0.04
    )
    points, (stock, _) = [layer["data"]["values"] for layer in spec["layer"]]
    assert [point["ms"] for point in points] == [60.0, 36.0]
    assert points[0]["budget"] == "11.0 MB"
    assert (stock["mb"], stock["ms"]) == (100, 40.0)


@pytest.mark.parametrize(
    ("total", "labels"), [(10**8, ["", "stock and this plan"]), (2 * 10**7, ["stock", "this plan"])]
)
def test_names_in_a_frontier_do_not_cover_each_other(total: int, labels: list[str]) -> None:
    """A plan that changes nothing is where the original graph is."""
    spec = frontier([{"total": 10**7, "time": 1.5, "budget": 11 * 10**6}], {"total": total, "time": 1.0}, 10**8, 0.04)
    named = spec["layer"][1]
    assert [point["label"] for point in named["data"]["values"]] == labels
    assert named["layer"][1]["encoding"]["text"]["field"] == "label"
