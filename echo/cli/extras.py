"""Facts about what takes more than echo itself: pages and pictures, the policy ``exact``, energy."""

from __future__ import annotations

import importlib.util
from typing import Iterator

from echo.cli.fact import Fact
from echo.recording.energy import Rapl

_EXTRAS = {"pages and pictures": ("report", ("jinja2", "vl_convert")), "the policy exact": ("exact", ("highspy",))}


def extras() -> Iterator[Fact]:
    """What the extras of the package bring, and whether the energy of the processors can be read."""
    for name, (extra, modules) in _EXTRAS.items():
        there = all(importlib.util.find_spec(module) for module in modules)
        yield Fact("extras", name, there, "" if there else f"pip install 'mxnet-echo[{extra}]'")
    try:
        Rapl()
    except LookupError as error:
        yield Fact("extras", "energy of CPUs", False, str(error).partition(": ")[2])
    else:
        yield Fact("extras", "energy of CPUs", True, "by RAPL")
