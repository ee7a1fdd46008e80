"""Charts of a profile as Vega-Lite and Vega specifications: values in, JSON out.

`echo.report.pages` shows them on a page and makes PNG and SVG of them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any, Iterator, Mapping, Sequence

from echo.estimators import footprint as kinds
from echo.plans.decisions import HIDDEN, LAYOUT_COPIES, WORKSPACES
from echo.report.segment import FREED, HEAVY, RECOMPUTED, STASHED, Operator, Segment
from echo.report.usage import GAPS, MIRROR, PLANNED, STOCK, Compared, Layer, Tensor, Usage
from echo.system.terminal import MB, size_text

Spec = Mapping[str, Any]
VEGA_LITE = "6.4"  # the version that is bundled, too
VEGA_LITE_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_MOST_BARS, _LEAST_BAR = 10, 0.001  # layers; and the part of the largest bar that is a pixel wide
_MOST_SAMPLES = 1500  # of a line; each is the highest of its neighbours
WIDTH = 900  # pixels, where there is no page that knows better
_HEIGHT, _OVERVIEW = 260, 46
_OPERATOR_WIDTH = 300  # of one in a segment: its point and its name
_NEAR_AT, _LINE = 0.16, 0.07  # parts of the width and the height that words for a peak take
# no color stands for two things: graphs have none of the kinds, roles of a segment those of the same feature maps
GRAPH_COLORS = {STOCK: "#8c8c8c", PLANNED: "#4b3fe4", MIRROR: "#c71585"}
KIND_COLORS = {
    kinds.FEATURE_MAPS: "#2f7ed8", kinds.OUTPUT_GRADIENTS: "#e0861a", kinds.RECOMPUTED: "#3f9c55",
    kinds.TEMPORARIES: "#5fb3b0", kinds.WEIGHTS: "#9a6fb0", kinds.GRADIENTS: "#d65f5f", kinds.INPUTS: "#8a6d57",
    kinds.AUXILIARY: "#d9b42c", kinds.OPTIMIZER: "#e38aa0", HIDDEN: "#6b7a8f", LAYOUT_COPIES: "#7f7f3f",
    WORKSPACES: "#7a1f3d", GAPS: "#bdb6ae",
}  # fmt: skip

FONT = "system-ui, 'DejaVu Sans', sans-serif"  # of the page, too
# the look of pictures: on the page, vega-embed is told the same
PRINT = {"font": FONT, "title": {"fontSize": 15, "anchor": "start"}, "view": {"stroke": None}}
ROLE_COLORS = {HEAVY: "#3c4650", RECOMPUTED: "#3f9c55", STASHED: "#2f7ed8", FREED: "#cfc9c1"}
_FRONTIER_AXIS = {"type": "quantitative", "scale": {"zero": False}, "axis": {"tickCount": 8}}
_TENTHS = {"tickCount": 10}  # more labels may cover each other
_GRAPHS = {"orient": "top", "title": None, "symbolOpacity": 1}  # legends
_KINDS = {"orient": "bottom", "columns": 3, "columnPadding": 24, "title": None, "symbolType": "square"}


def scale(colors: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """The colors of some names, as a scale; grey for a name that has none."""
    return {"domain": list(names), "range": [colors.get(name, "#888888") for name in names]}


def in_megabytes(size: int) -> float:
    """MB, rounded for the eye."""
    return round(size / MB, 3)


def _largest_at(usage: Usage, steps: Sequence[int], most: int = 3) -> Iterator[str]:
    """For each of these steps, in order, the largest arrays alive that MXNet plans, in words."""
    starts = sorted(usage.passing, key=lambda tensor: tensor.first)
    alive: list[tuple[int, int, Tensor]] = []
    at = 0
    for step in steps:
        while at < len(starts) and starts[at].first <= step:
            heapq.heappush(alive, (-starts[at].bytes, at, starts[at]))
            at += 1
        top: list[tuple[int, int, Tensor]] = []
        while alive and len(top) < most:
            item = heapq.heappop(alive)
            if item[2].last >= step:
                top.append(item)
        for item in top:
            heapq.heappush(alive, item)
        yield ", ".join(f"{tensor.name} {tensor.bytes / MB:.1f} MB" for _, _, tensor in top)


def _samples(usage: Usage) -> list[int]:
    """Steps to draw: all of them, or of each of `_MOST_SAMPLES` neighbourhoods the one with the most alive."""
    count = len(usage.live)
    if count <= _MOST_SAMPLES:
        return list(range(count))
    bounds = [count * number // _MOST_SAMPLES for number in range(_MOST_SAMPLES + 1)]
    return [max(range(low, high), key=usage.live.__getitem__) for low, high in zip(bounds, bounds[1:])]


def timeline_rows(profile: Compared) -> list[dict[str, Any]]:
    """Points of the lines: how far the step is (0 to 1), MB alive, the operator, and the largest arrays."""
    rows = []
    for name, usage in profile.usages.items():
        steps = _samples(usage)
        for step, largest in zip(steps, _largest_at(usage, steps)):
            rows.append(
                {
                    "graph": name,
                    "at": round(step / max(len(usage.steps) - 1, 1), 5),
                    "mb": in_megabytes(usage.live[step]),
                    "operator": usage.steps[step],
                    "pass": "forward" if step < usage.forward_steps else "backward",
                    "largest": largest,
                }
            )
    return rows


def over_step(profile: Compared) -> Spec:
    """Bytes alive over the training step, one line a graph with its peak named, for print."""
    whole = timeline(profile)
    detail, _ = whole["vconcat"]
    lines, peaks, _ = detail["layer"]
    x = {key: value for key, value in detail["encoding"]["x"].items() if key != "scale"}
    title = {"title": "operators of the training step, in their order"}
    encoding = {**detail["encoding"], "x": {**x, **title}}
    shared = {"$schema": whole["$schema"], "data": whole["data"], "config": PRINT}
    return {**shared, "width": WIDTH, "height": _HEIGHT, "encoding": encoding, "layer": [lines, peaks]}


def _peaks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The highest point of each line, with words for it, which stand at ``over``: above words that they would cover."""
    highest: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["graph"] not in highest or row["mb"] > highest[row["graph"]]["mb"]:
            highest[row["graph"]] = row
    most = max((row["mb"] for row in highest.values()), default=0.0)
    peaks: list[dict[str, Any]] = []
    for graph, row in sorted(highest.items(), key=lambda item: float(item[1]["mb"])):
        near = [peak["over"] for peak in peaks if abs(peak["at"] - row["at"]) < _NEAR_AT]
        over = max([row["mb"], *(each + _LINE * most for each in near if each > row["mb"] - _LINE * most)])
        peaks.append({"graph": graph, "at": row["at"], "mb": row["mb"], "over": round(over, 3),
                      "label": f"{graph}: {row['mb']:,.1f} MB"})  # fmt: skip
    return peaks


def _with_room(peaks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A scale with room for the words for the highest peak: above the scale of a chart that zooms, all is cut off."""
    top = max((peak["over"] for peak in peaks), default=0.0) / (1 - _LINE)
    return {"domain": [0, top or 1], "nice": True}


def _words_for(peaks: Sequence[Mapping[str, Any]], y: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "data": {"values": peaks},
        "mark": {"type": "text", "dy": -9, "fontWeight": "bold"},
        "encoding": {"y": {**y, "field": "over"}, "text": {"field": "label", "type": "nominal"}},
    }


def timeline(profile: Compared) -> Spec:
    """Bytes alive over the training step, one line a graph; a brush over the small one below zooms."""
    title = "operators of the training step, in their order"
    x: dict[str, Any] = {"field": "at", "type": "quantitative", "title": title}
    colors = scale(GRAPH_COLORS, list(profile.usages))
    color = {"field": "graph", "type": "nominal", "scale": colors, "legend": _GRAPHS}
    rows = timeline_rows(profile)
    peaks = _peaks(rows)
    y = {"field": "mb", "type": "quantitative", "title": "MB alive", "scale": _with_room(peaks)}
    tips = [{"field": field, "type": "nominal"} for field in ("graph", "operator", "pass", "largest")]
    tips.insert(1, {"field": "mb", "type": "quantitative", "format": ",.1f"})
    zoomed: dict[str, Any] = {**x, "scale": {"domain": {"param": "brush"}}, "axis": {"format": "%"}, "title": None}
    near = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    shown = {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}
    area = {"type": "area", "opacity": 0.12, "line": True, "clip": True}
    point = {"type": "point", "filled": True, "size": 60, "clip": True}
    detail = {
        "width": WIDTH,
        "height": _HEIGHT,
        "encoding": {"x": zoomed, "y": y, "color": color},
        "layer": [
            {"mark": area, "encoding": {"y": {**y, "stack": None}}},
            _words_for(peaks, y),
            {
                "params": [{"name": "near", "select": near}],
                "mark": point,
                "encoding": {"opacity": shown, "tooltip": tips},
            },
        ],
    }
    overview = {
        "width": WIDTH,
        "height": _OVERVIEW,
        "params": [{"name": "brush", "select": {"type": "interval", "encodings": ["x"]}}],
        "mark": {"type": "line", "strokeWidth": 1},
        "encoding": {"x": {**x, "axis": {"format": "%"}}, "y": {**y, "title": None, "axis": None}, "color": color},
    }
    return {"$schema": VEGA_LITE_SCHEMA, "data": {"values": rows}, "vconcat": [detail, overview]}


def _seen(profile: Compared) -> list[str]:
    """The kinds that some bar shows, in the order of their colors: the others would only be in the legend."""
    most = max((usage.total for usage in profile.usages.values()), default=0)
    columns = [usage.by_kind for usage in profile.usages.values()]
    seen = {kind: None for column in columns for kind, size in column.items() if size >= _LEAST_BAR * most}
    return [*filter(seen.__contains__, KIND_COLORS), *(kind for kind in seen if kind not in KIND_COLORS)]


def by_kind(profile: Compared) -> Spec:
    """The bytes that are held at the peak: a bar for each graph, with kinds of arrays stacked."""
    names = _seen(profile)
    rows = [
        {"graph": graph, "kind": kind, "mb": in_megabytes(size), "order": names.index(kind)}
        for graph, usage in profile.usages.items()
        for kind, size in usage.by_kind.items()
        if kind in names
    ]
    colors = scale(KIND_COLORS, names)
    amount = {"field": "mb", "type": "quantitative"}
    return {
        "$schema": VEGA_LITE_SCHEMA,
        "data": {"values": rows},
        "width": WIDTH,
        "height": {"step": 42},
        "mark": {"type": "bar", "height": 28},
        "encoding": {
            "y": {"field": "graph", "type": "nominal", "title": None, "sort": list(profile.usages)},
            "x": {**amount, "title": "MB at the peak", "axis": _TENTHS},
            "color": {"field": "kind", "type": "nominal", "scale": colors, "legend": _KINDS},
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [{"field": "graph"}, {"field": "kind"}, {**amount, "format": ",.1f"}],
        },
    }


def by_layer(profile: Compared, layer: Layer) -> Spec:
    """The bytes that the largest layers hold at the peak: a bar for each graph, with kinds of arrays stacked."""
    most: dict[str, int] = {}
    names, rows = _seen(profile), []
    for graph, usage in profile.usages.items():
        for name, size in usage.layers(layer).items():
            most[name] = max(most.get(name, 0), size)
        for (name, kind), size in usage.by_layer(layer).items():
            rows.append({"graph": graph, "layer": name, "kind": kind, "mb": in_megabytes(size)})
    largest = sorted(most, key=lambda name: -most[name])[:_MOST_BARS]
    # with room for fonts that are wider than those the picture was laid out with
    header = {"labelAngle": 0, "labelAlign": "left", "labelFontWeight": "bold", "labelPadding": 24, "title": None}
    return {
        "$schema": VEGA_LITE_SCHEMA,
        "data": {"values": [row for row in rows if row["layer"] in largest and row["kind"] in names]},
        "width": WIDTH - 200,
        "height": {"step": 16},
        "spacing": 6,
        "mark": {"type": "bar", "height": 13},
        "encoding": {
            "row": {"field": "layer", "type": "nominal", "sort": largest, "header": header},
            "y": {"field": "graph", "type": "nominal", "title": None, "sort": list(profile.usages)},
            "x": {"field": "mb", "type": "quantitative", "title": "MB at the peak", "axis": _TENTHS},
            "color": {"field": "kind", "type": "nominal", "scale": scale(KIND_COLORS, names), "legend": _KINDS},
        },
    }


def frontier(
    rows: Sequence[Mapping[str, float]], plan: Mapping[str, float], stock_bytes: int, seconds: float,
    held: str = "MB held by the executor",
) -> Spec:  # fmt: skip
    """Memory against time: the original graph, plans of several budgets, and the plan of the profile.

    Args:
        rows: as `echo.plans.frontier.Frontier.to_json` has them.
        plan: the same of the profile's plan.
        stock_bytes: bytes that the executor holds without echo.
        seconds: predicted, of a step without echo.
        held: the title of the axis of bytes.
    """
    values = [_plan_point(row, "within a budget", seconds) for row in rows]
    ends = [_plan_point({"total": stock_bytes, "time": 1.0}, STOCK, seconds), _plan_point(plan, "this plan", seconds)]
    named_ends = _named(ends, [*values, *ends])
    tips = [{"field": "plan"}, {"field": "budget"},
            {"field": "mb", "type": "quantitative", "format": ",.1f", "title": "MB"},
            {"field": "ms", "type": "quantitative", "format": ",.2f", "title": "ms a step"},
            {"field": "time", "type": "quantitative", "format": "+.1%", "title": "time, against stock"}]  # fmt: skip
    colors = [GRAPH_COLORS[name] for name in (STOCK, PLANNED)]
    point = {"type": "point", "filled": True, "size": 70, "opacity": 1, "color": colors[1]}
    named = {"field": "plan", "scale": {"domain": [STOCK, "this plan"], "range": colors}, "legend": None}
    large = {"mark": {**point, "size": 200}, "encoding": {"color": named}}
    text = {"type": "text", "dy": -14, "fontWeight": "bold"}
    words = {"mark": text, "encoding": {"text": {"field": "label"}, "color": named}}
    return {
        "$schema": VEGA_LITE_SCHEMA,
        "width": WIDTH,
        "height": 240,
        "encoding": {
            "x": {**_FRONTIER_AXIS, "field": "mb", "title": held},
            "y": {**_FRONTIER_AXIS, "field": "ms", "title": "ms a step, predicted"},
            "tooltip": tips,
        },
        "layer": [
            {"data": {"values": [*values, ends[1]]}, "mark": {"type": "line", "point": point, "color": colors[1]}},
            {"data": {"values": named_ends}, "layer": [large, words]},
        ],
    }


def _named(ends: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The original graph and the plan with labels: one for both where two would cover each other, among all points."""
    labels = [end["plan"] for end in ends]
    for axis, words in (("mb", _NEAR_AT), ("ms", _LINE)):
        values = [point[axis] for point in points]
        if abs(ends[0][axis] - ends[1][axis]) > words * (max(values) - min(values)):
            break
    else:
        labels = ["", " and ".join(labels)]
    return [{**end, "label": label} for end, label in zip(ends, labels)]


def _plan_point(row: Mapping[str, float], name: str, seconds: float) -> dict[str, Any]:
    ms, size = round(1000 * row.get("seconds", seconds * row["time"]), 3), in_megabytes(int(row["total"]))
    budget = size_text(row["budget"]) if "budget" in row else "none"
    return {"mb": size, "ms": ms, "time": row["time"] - 1, "plan": name, "budget": budget}


def segment(drawn: Segment) -> Spec:
    """Operators of a segment from the top down, as points with names, and the decisions on their feature maps."""
    rows = [_operator(operator) for operator in drawn.operators]
    lines = [{**{axis: rows[a][axis] for axis in "xy"}, "x2": rows[b]["x"], "y2": rows[b]["y"]} for a, b in drawn.edges]
    widest = max(Counter(operator.rank for operator in drawn.operators).values())
    # the names stand right of the points, and need as much room after the last one
    x = {
        "field": "x", "type": "quantitative", "axis": None,
        "scale": {"domain": [0.5 / widest, 1 + 0.5 / widest], "nice": False},
    }  # fmt: skip
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": {"reverse": True, "zero": False, "nice": False}}
    edges = {
        "data": {"values": lines},
        "mark": {"type": "rule", "color": "#9aa8b5", "opacity": 0.55},
        "encoding": {"x2": {"field": "x2"}, "y2": {"field": "y2"}},
    }
    width = min(WIDTH, _OPERATOR_WIDTH * widest)
    words = {"type": "text", "align": "left", "dx": 9, "limit": width // widest - 20}
    return {
        "$schema": VEGA_LITE_SCHEMA,
        "width": width,
        "height": 46 * (1 + max(operator.rank for operator in drawn.operators)),
        "view": {"stroke": None},
        "encoding": {"x": x, "y": y},
        "layer": [
            *([edges] if lines else []),  # without any, Vega warns of a scale without values
            _points(rows),
            {"data": {"values": rows}, "mark": words, "encoding": {"text": {"field": "label", "type": "nominal"}}},
        ],
    }


def _operator(drawn: Operator) -> dict[str, Any]:
    alike = f"{drawn.count} alike, " if drawn.count > 1 else ""
    return {
        "name": drawn.name,
        "label": [drawn.name, f"{drawn.op}, {alike}{size_text(drawn.bytes)}"],
        "operator": drawn.op,
        "role": drawn.role,
        "mb": in_megabytes(drawn.bytes),
        "read": "read by a gradient" if drawn.read else "read by no gradient",
        "x": drawn.place,
        "y": drawn.rank,
    }


def _points(rows: Sequence[Mapping[str, Any]]) -> Spec:
    """The operators, coloured by the decisions on their feature maps; those that gradients read are squares."""
    shapes = {"domain": ["read by a gradient", "read by no gradient"], "range": ["square", "circle"]}
    legend = {"orient": "top", "title": None, "columns": 4, "symbolOpacity": 1}
    grey = {**legend, "symbolFillColor": "#888888", "symbolStrokeColor": "#888888"}
    roles = scale(ROLE_COLORS, [role for role in ROLE_COLORS if any(row["role"] == role for row in rows)])
    tips = [{"field": field, "type": "nominal"} for field in ("name", "operator", "role", "read")]
    return {
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "color": {"field": "role", "type": "nominal", "scale": roles, "legend": legend},
            "shape": {"field": "read", "type": "nominal", "scale": shapes, "legend": grey},
            "tooltip": [*tips, {"field": "mb", "type": "quantitative", "format": ",.3f", "title": "MB"}],
        },
    }
