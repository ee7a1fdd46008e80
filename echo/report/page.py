"""A profile as one HTML page that needs nothing else: charts that answer the mouse, tables that can be searched.

It is for reading on screens of all sizes, light and dark, and for printing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Mapping

from echo.report import measured
from echo.report.charts import FONT, VEGA_LITE, by_kind, frontier, segment, timeline
from echo.report.decisions import groups
from echo.report.extra import module_of
from echo.report.foreseen import of_symbol
from echo.report.more_memory import more_memory
from echo.report.profile import Profile
from echo.report.treemap import treemap
from echo.report.usage import ALWAYS, MIRROR, PLANNED, PROCESS, STOCK, Layer, layer_of
from echo.system.terminal import megabytes, random_unmoved, size_text

_TEMPLATE = "page.html.jinja"
_MOST_GROUPS, _MOST_ARRAYS = 2000, 200


def html(profile: Profile, title: str = "", layer: Layer = layer_of) -> str:
    """The page.

    Args:
        profile: what it shows.
        title: the name of the model.
        layer: how arrays are grouped, as for `echo.report.usage.Usage.by_layer`.

    Raises:
        UnsupportedError: jinja2 or vl-convert-python is not there.
    """
    with random_unmoved():
        jinja, convert = module_of("jinja2"), module_of("vl_convert")
        environment = jinja.Environment(
            loader=jinja.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["mb"] = megabytes
        bundle = convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
        page: str = environment.get_template(_TEMPLATE).render(
            profile=profile,
            title=title or "training step",
            charts=_script(_charts(profile, layer)),
            bundle=bundle,
            groups=groups(profile.plan.decisions)[:_MOST_GROUPS] if PLANNED in profile.usages else (),
            arrays={name: usage.at_peak[:_MOST_ARRAYS] for name, usage in profile.usages.items()},
            measured=measured.rows(profile),
            more_memory=more_memory(profile),
            in_process=_in_process(profile),
            step_ms=1000 * _step_seconds(profile),
            font=FONT,
            ALWAYS=ALWAYS,
            STOCK=STOCK,
            PLANNED=PLANNED,
            MIRROR=MIRROR,
        )
        return page


def save(
    profile: Profile,
    path: str | os.PathLike[str],
    title: str = "",
    layer: Layer = layer_of,
) -> None:
    """Writes the page into a file; see `html`."""
    Path(path).write_text(html(profile, title, layer), encoding="utf-8")


def _charts(profile: Profile, layer: Layer) -> Mapping[str, Any]:
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


def _step_seconds(profile: Profile) -> float:
    """Predicted seconds of a step without echo."""
    return profile.plan.time.before if profile.plan.time else profile.plan.step_seconds


def _in_process(profile: Profile) -> tuple[str, str, str] | None:
    """What a user sees of the plan in a process: a figure, what it is, and where it comes from; None without a plan."""
    stock, planned = (profile.usages.get(name) for name in (STOCK, PLANNED))
    if stock is None or planned is None:
        return None
    sizes = [usage.measured.get(PROCESS) for usage in (stock, planned)]
    if all(sizes):
        before, after = (int(size or 0) for size in sizes)
        source = f"measured: two steps make it grow by {size_text(after)} instead of {size_text(before)}"
    else:
        before, after = stock.total, planned.total
        source = f"predicted: the executor holds {size_text(after)} instead of {size_text(before)}"
        peaks = of_symbol(profile.plan)
        if peaks is None:
            source += "; Python, MXNet, your data and the optimizer come on top in both"
        else:
            before, after = peaks.stock.total, peaks.echo.total
            source += f", and the peak of the process with Module is {size_text(after)} instead of {size_text(before)}"
    saved = before - after
    return size_text(abs(saved)), "less" if saved >= 0 else "more", source


def _script(value: Any) -> str:
    """JSON that may stand inside of a script of a page, whatever names it has."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
