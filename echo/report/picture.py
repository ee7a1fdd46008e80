"""A profile as pictures for papers and READMEs: what holds the memory at the peak, and the memory over the step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Mapping

from echo.errors import OptionError
from echo.report.charts import PRINT, VEGA_LITE, WIDTH, by_kind, by_layer, over_step, segment
from echo.report.extra import module_of
from echo.report.profile import Profile
from echo.report.usage import Layer, layer_of
from echo.system.terminal import random_unmoved

_SCALE = 2.0  # of a PNG: pixels of a screen of high resolution


def save(
    profile: Profile,
    path: str | os.PathLike[str],
    title: str = "",
    layer: Layer = layer_of,
) -> None:
    """Writes what holds the memory at the peak, by kind and by layer, as PNG or SVG, as the end of the name says.

    Raises:
        OptionError: the name ends in another way.
        UnsupportedError: vl-convert-python is not there.
    """
    write(lambda: _both(profile, title, layer), path)


def save_over_step(profile: Profile, path: str | os.PathLike[str], title: str = "") -> None:
    """Writes the memory alive over the step, a line a graph; raises what `save` does."""
    write(lambda: {**over_step(profile), "title": title or "Memory over a training step", "background": "white"}, path)


def save_segment(profile: Profile, path: str | os.PathLike[str], title: str = "") -> None:
    """Writes one segment of echo's graph: what is stashed and recomputed, what gradients read.

    Raises:
        OptionError: the profile has none, or as `save`.
        UnsupportedError: as `save`.
    """
    drawn = profile.segment
    if drawn is None:
        raise OptionError("there is no segment to draw: expected a profile that has echo's graph")
    write(lambda: {**segment(drawn), "title": title, "background": "white", "config": PRINT}, path)


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
    """Writes what a Vega-Lite specification draws, as PNG or SVG; it is made where its libraries are there.

    Raises:
        OptionError, UnsupportedError: as `save`.
    """
    ending = ending_of(path)
    with random_unmoved():
        convert = module_of("vl_convert")
        spec = make()
        if ending == ".svg":
            Path(path).write_text(convert.vegalite_to_svg(spec, vl_version=VEGA_LITE), encoding="utf-8")
        else:
            Path(path).write_bytes(convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=_SCALE))


def _both(profile: Profile, title: str, layer: Layer) -> dict[str, Any]:
    parts = [{**by_kind(profile), "width": WIDTH - 200}, by_layer(profile, layer)]
    inner = [{key: value for key, value in part.items() if key != "$schema"} for part in parts]
    return {"$schema": parts[0]["$schema"], "title": title, "background": "white", "config": PRINT, "vconcat": inner}
