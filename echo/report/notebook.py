"""A profile as it shows in a notebook: pictures where the extra ``report`` is there, and the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echo.errors import UnsupportedError
from echo.report.charts import VEGA_LITE, by_kind, timeline
from echo.report.extra import module_of
from echo.report.text import render
from echo.system.terminal import preformatted, random_unmoved

if TYPE_CHECKING:
    from echo.report.profile import Profile


def shown(profile: Profile) -> str:
    """HTML: bytes by kind and over the step as SVG, then the text of the profile."""
    with random_unmoved():
        text = preformatted(render(profile))
        try:
            convert = module_of("vl_convert")
        except UnsupportedError:
            return text
        charts = (convert.vegalite_to_svg(chart(profile), vl_version=VEGA_LITE) for chart in (by_kind, timeline))
        return "".join(f"<div>{svg}</div>" for svg in charts) + text
