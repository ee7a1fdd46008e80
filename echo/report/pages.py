"""Pages and pictures: the treemap, the decisions, the page itself, and cells of notebooks."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

from echo.errors import OptionError, UnsupportedError
from echo.plans.decisions import Decision
from echo.report import text
from echo.report.charts import (
    FONT,
    KIND_COLORS,
    PRINT,
    VEGA_LITE,
    WIDTH,
    by_kind,
    by_layer,
    frontier,
    in_megabytes,
    over_step,
    scale,
    segment,
    timeline,
)
from echo.report.predicted_peaks import of_symbol
from echo.report.text import more_memory, render
from echo.report.usage import ALWAYS, MIRROR, PLANNED, STOCK, Layer, Profiled, Tensor, Usage, layer_of
from echo.system.files import write_in_one_step
from echo.system.terminal import megabytes, preformatted, preserve_python_rng


def module_of(name: str) -> Any:
    """A module that the extra ``report`` brings.

    Raises:
        UnsupportedError: it is not there; the message says what to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"reports need {error.name}: pip install 'mxnet-echo[report]'") from error


# The bytes that are held at the peak as nested areas: layers, and in each layer kinds of arrays.

_SCHEMA = "https://vega.github.io/schema/vega/v6.json"
_MOST_LAYERS = 60
_HEIGHT, _LEAST_HEIGHT = 380, 24  # pixels
_CELLS = {
    "type": "rect",
    "from": {"data": "leaves"},
    "encode": {
        "enter": {
            "fill": {"scale": "color", "field": "kind"},
            "stroke": {"value": "#ffffff"},
            "tooltip": {"signal": "{layer: datum.layer, kind: datum.kind, MB: format(datum.mb, ',.1f')}"},
        },
        "update": {"x": {"field": "x0"}, "y": {"field": "y0"}, "x2": {"field": "x1"}, "y2": {"field": "y1"}},
    },
}
_LABELS = {
    "type": "text",
    "from": {"data": "layers"},
    "interactive": False,
    "encode": {
        "update": {
            "x": {"signal": "datum.x0 + 4"},
            "y": {"signal": "datum.y0 + 12"},
            "fill": {"value": "#ffffff"},
            "fontSize": {"value": 11},
            "fontWeight": {"value": "bold"},
            # two lines where there is room, so that a long name costs no size
            "text": {
                "signal": "datum.y1 - datum.y0 < 16 ? '' : datum.y1 - datum.y0 < 32 ? "
                "datum.layer + '  ' + format(datum.total, ',.1f') + ' MB' : "
                "[datum.layer, format(datum.total, ',.1f') + ' MB']"
            },
            "limit": {"signal": "datum.x1 - datum.x0 - 6"},
        }
    },
}


def _tree(usage: Usage, layer: Layer) -> list[dict[str, Any]]:
    sizes = usage.layers(layer)
    shown = set(sorted(sizes, key=lambda name: -sizes[name])[:_MOST_LAYERS])
    leaves: Counter[tuple[str, str]] = Counter()
    totals: Counter[str] = Counter()
    for (name, kind), size in usage.by_layer(layer).items():
        parent = name if name in shown else f"{len(sizes) - len(shown)} more layers"
        leaves[parent, kind] += size
        totals[parent] += size
    tree: list[dict[str, Any]] = [{"id": "all", "parent": ""}]
    for name, size in totals.items():
        tree.append({"id": f"layer {name}", "parent": "all", "layer": name, "total": in_megabytes(size)})
    for (name, kind), size in leaves.items():
        leaf = {"layer": name, "kind": kind, "mb": in_megabytes(size)}
        tree.append({"id": f"{kind} of {name}", "parent": f"layer {name}", **leaf})
    return tree


def treemap(usage: Usage, layer: Layer = layer_of, most: int = 0) -> Mapping[str, Any]:
    """Returns a Vega specification of the bytes at the peak: an area for each layer, and in it one for each kind.

    ``most`` are the bytes of the largest graph that is drawn next to it: the same area then is the same memory.
    """
    total = sum(usage.layers(layer).values())
    names = list(dict.fromkeys(kind for _, kind in usage.by_layer(layer)))
    squares = {
        "type": "treemap",
        "field": "mb",
        "sort": {"field": "value", "order": "descending"},
        "round": True,
        "paddingInner": 1,
        "size": [{"signal": "width"}, {"signal": "height"}],
    }
    stratify = {"type": "stratify", "key": "id", "parentKey": "parent"}
    return {
        "$schema": _SCHEMA,
        "width": WIDTH,
        "height": max(round(_HEIGHT * min(total / most, 1)), _LEAST_HEIGHT) if most else _HEIGHT,
        "data": [
            {"name": "tree", "values": _tree(usage, layer), "transform": [stratify, squares]},
            {"name": "leaves", "source": "tree", "transform": [{"type": "filter", "expr": "!!datum.kind"}]},
            {"name": "layers", "source": "tree", "transform": [{"type": "filter", "expr": "datum.depth == 1"}]},
        ],
        "scales": [{"name": "color", "type": "ordinal", **scale(KIND_COLORS, names)}],
        "legends": [{"fill": "color", "orient": "bottom", "columns": 3, "symbolType": "square"}],
        "marks": [_CELLS, _LABELS],
    }


# Decisions of a plan in groups: alike feature maps of alike layers with one reason are one row.

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class DecisionGroup:
    """Decisions on ``count`` feature maps with names and reasons that differ in numbers; bytes and seconds are sums."""

    name: str
    op: str
    action: str
    reason: str
    count: int
    bytes: int
    seconds: float


def groups(decisions: Iterable[Decision]) -> list[DecisionGroup]:
    """The decisions as groups, the largest first; of a group of one, the name and the reason are its own."""
    members_of: dict[tuple[str, str, str, str], list[Decision]] = {}
    for decision in decisions:
        key = _starred(decision.name), decision.op, decision.action, _starred(decision.reason)
        members_of.setdefault(key, []).append(decision)
    rows = []
    for (name, op, action, _), members in members_of.items():
        if len({member.name for member in members}) == 1:
            name = members[0].name
        reason = _joined([member.reason for member in members])
        size, seconds = sum(member.bytes for member in members), sum(member.seconds for member in members)
        rows.append(DecisionGroup(name, op, action, reason, len(members), size, seconds))
    return sorted(rows, key=lambda group: -group.bytes)


def _starred(text: str) -> str:
    return _NUMBERS.sub("*", text)


def _joined(reasons: list[str]) -> str:
    """Reasons that differ in numbers as one: counts as "1 to 3", numbers in names as "*"."""
    words, *_ = (_NUMBERS.split(reason) for reason in reasons)
    joined = words[0]
    for before, numbers, after in zip(words, zip(*map(_NUMBERS.findall, reasons)), words[1:]):
        values = sorted({int(number) for number in numbers})
        if len(values) == 1:
            joined += numbers[0]
        elif before.endswith(" ") or not before:
            joined += f"{values[0]} to {values[-1]}"
        else:
            joined += "*"
        joined += after
    return joined


# A profile as one HTML page that needs nothing else: charts that answer the mouse, tables that can be searched.
#
# It is for reading on screens of all sizes, light and dark, and for printing.

_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_MOST_GROUPS, _MOST_ARRAYS, _LEAST_ARRAYS = 2000, 200, 8


@functools.lru_cache(maxsize=None)
def _scripts(convert: Any) -> str:
    """The JavaScript of ``vl_convert`` that draws charts, which takes a second to put together."""
    bundle: str = convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return bundle


def html(profile: Profiled, title: str = "", layer: Layer = layer_of) -> str:
    """The page.

    Args:
        profile: the profile to show.
        title: the name of the model.
        layer: how arrays are grouped, as for `echo.report.usage.Usage.by_layer`.

    Raises:
        UnsupportedError: jinja2 or vl-convert-python is not there.
    """
    values = {
        "profile": profile,
        "groups": groups(profile.plan.decisions)[:_MOST_GROUPS] if PLANNED in profile.usages else (),
        "arrays": {name: _largest(usage) for name, usage in profile.usages.items()},
        "measured": text.rows(profile),
        "more_memory": more_memory(profile),
        "peaks": of_symbol(profile.plan) if PLANNED in profile.usages else None,
        "step_ms": 1000 * _step_seconds(profile),
        "ALWAYS": ALWAYS, "STOCK": STOCK, "PLANNED": PLANNED, "MIRROR": MIRROR,
    }  # fmt: skip
    return rendered(_TEMPLATE, title or "training step", lambda: _charts(profile, layer), profile.versions, values)


def _largest(usage: Usage) -> list[Tensor]:
    """The largest arrays at the peak, without those of 0.0 MB, unless these are among the first ones."""
    arrays = enumerate(usage.at_peak[:_MOST_ARRAYS])
    return [array for number, array in arrays if number < _LEAST_ARRAYS or megabytes(array.bytes) != "0.0"]


def rendered(
    template: Path, title: str, charts: Callable[[], Mapping[str, Any]], versions: Mapping[str, str],
    values: Mapping[str, Any],
) -> str:  # fmt: skip
    """A page that extends ``base.html.jinja``: its own values, charts by the ids of their elements, and versions.

    Raises:
        UnsupportedError: jinja2 or vl-convert-python is not there.
    """
    with preserve_python_rng():
        jinja, convert = module_of("jinja2"), module_of("vl_convert")
        loader = jinja.FileSystemLoader([template.parent, Path(__file__).parent])
        environment = jinja.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.filters["mb"] = megabytes
        page: str = environment.get_template(template.name).render(
            {**values, "title": title, "charts": _script(charts()), "bundle": _scripts(convert), "versions": versions,
             "font": FONT}
        )  # fmt: skip
        return page


def save_page(profile: Profiled, path: str | os.PathLike[str], title: str = "", layer: Layer = layer_of) -> None:
    """Writes the page into a file; see `html`."""
    write_in_one_step(path, html(profile, title, layer))


def _charts(profile: Profiled, layer: Layer) -> Mapping[str, Any]:
    charts = {"timeline": timeline(profile), "kinds": by_kind(profile)}
    most = max((sum(usage.layers(layer).values()) for usage in profile.usages.values()), default=0)
    for name, usage in profile.usages.items():
        charts[f"layers-{name}"] = treemap(usage, layer, most)
    if profile.frontier:
        chosen = {"total": profile.plan.after.total, "time": profile.plan.time_ratio}
        charts["frontier"] = frontier(profile.frontier, chosen, profile.plan.before.total, _step_seconds(profile))
    if profile.segment:
        charts["segment"] = segment(profile.segment)
    return charts


def _step_seconds(profile: Profiled) -> float:
    """Predicted seconds of a step without echo."""
    return profile.plan.time.before if profile.plan.time else profile.plan.step_seconds


def _script(value: Any) -> str:
    """JSON that may stand inside of a script of a page, whatever names it has."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# A profile as pictures for papers and READMEs: what holds the memory at the peak, and the memory over the step.

_SCALE = 2.0  # of a PNG: pixels of a screen of high resolution


def save_picture(profile: Profiled, path: str | os.PathLike[str], title: str = "", layer: Layer = layer_of) -> None:
    """Writes the bytes at the peak, by kind and by layer, as PNG or SVG, as the end of the name says.

    Raises:
        OptionError: the name ends in another way.
        UnsupportedError: vl-convert-python is not there.
    """
    write(lambda: _both(profile, title, layer), path)


def save_over_step(profile: Profiled, path: str | os.PathLike[str], title: str = "") -> None:
    """Writes the memory alive over the step, a line a graph; raises what `save` does."""
    write(lambda: {**over_step(profile), "title": title or "Memory over a training step", "background": "white"}, path)


def save_segment(profile: Profiled, path: str | os.PathLike[str], title: str = "") -> None:
    """Draws one segment of echo's graph: stashed and recomputed feature maps, and those that gradients read.

    Raises:
        OptionError: the profile has none, or as `save`.
        UnsupportedError: as `save`.
    """
    drawn = profile.segment
    if drawn is None:
        raise OptionError("there is no segment to draw: expected a profile that has echo's graph")
    words = f"{title}: one segment of the plan" if title else "One segment of the plan"
    write(lambda: {**segment(drawn), "title": words, "background": "white", "config": PRINT}, path)


def ending_of(path: str | os.PathLike[str]) -> str:
    """Returns the ending of a picture's name: ".png" or ".svg".

    Raises:
        OptionError: it ends in another way.
    """
    ending = Path(path).suffix.lower()
    if ending not in (".png", ".svg"):
        raise OptionError(f"expected a picture NAME.png or NAME.svg, got {os.fspath(path)!r}")
    return ending


def write(make: Callable[[], Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Writes a Vega-Lite specification as PNG or SVG; ``make`` is called only if the libraries are installed.

    Raises:
        OptionError, UnsupportedError: as `save`.
    """
    ending = ending_of(path)
    with preserve_python_rng():
        convert = module_of("vl_convert")
        spec = make()
        if ending == ".svg":
            write_in_one_step(path, convert.vegalite_to_svg(spec, vl_version=VEGA_LITE))
        else:
            write_in_one_step(path, convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=_SCALE))


def _both(profile: Profiled, title: str, layer: Layer) -> dict[str, Any]:
    parts = [{**by_kind(profile), "width": WIDTH - 200}, by_layer(profile, layer)]
    inner = [{key: value for key, value in part.items() if key != "$schema"} for part in parts]
    words = title or "Memory at the peak of a training step"
    return {"$schema": parts[0]["$schema"], "title": words, "background": "white", "config": PRINT, "vconcat": inner}


def shown(profile: Profiled) -> str:
    """HTML: bytes by kind and over the step as SVG, then the text of the profile."""
    with preserve_python_rng():
        text = preformatted(render(profile))
        try:
            convert = module_of("vl_convert")
        except UnsupportedError:
            return text
        charts = (convert.vegalite_to_svg(chart(profile), vl_version=VEGA_LITE) for chart in (by_kind, timeline))
        return "".join(f"<div>{svg}</div>" for svg in charts) + text
