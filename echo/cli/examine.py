"""The examination behind ``mxecho doctor``: it collects the facts about this machine, and judges whether echo works."""

from __future__ import annotations

import os
from typing import Iterable, Sequence

from rich.table import Table

from echo.cli import machine
from echo.cli.extras import extras
from echo.cli.fact import FINE, OFF, STOPS, Fact
from echo.cli.gpu import gpus
from echo.cli.mxnet_here import mxnet
from echo.system.terminal import text_of

_WIDTH = 120


def examine() -> list[Fact]:
    """Imports MXNet, runs kernels on each GPU, and returns all facts in the order in which they are shown."""
    mxnet_here = mxnet()
    why_not = None if mxnet_here.examined is None else mxnet_here.examined.devices
    return [
        *machine.python(),
        *machine.libraries(),
        *machine.compiler(),
        *mxnet_here.facts,
        *gpus(mxnet_here.wheel, why_not),
        *extras(),
        *machine.cache(),
        *machine.variables(os.environ),
    ]


def render(facts: Sequence[Fact]) -> str:
    """Renders the facts as a table of at most 120 columns, and below it whether echo works."""
    table = Table("echo doctor", "found", "remark")
    for column in table.columns:
        column.overflow = "fold"
    for section in dict.fromkeys(fact.section for fact in facts):
        table.add_section()
        for fact in facts:
            if fact.section == section:
                remark = ": ".join(filter(None, ["" if fact.state == FINE else fact.state, fact.remark]))
                table.add_row(f"{section}: {fact.name}", _word(fact.value), remark)
    return text_of([table, *summary(facts)], _WIDTH)


def summary(facts: Sequence[Fact]) -> list[str]:
    """Whether echo works here, a line for each reason why not, and the names of what is off."""
    stops, off = ([fact for fact in facts if fact.state == state] for state in (STOPS, OFF))
    lines = ["echo cannot work here:" if stops else "echo works here."]
    lines += [f"  {fact.section}, {fact.name}: {fact.remark or _word(fact.value)}" for fact in stops]
    names = ", ".join(f"{fact.section}: {fact.name}" for fact in off)
    return [*lines, *([f"Off: {names}."] if off else [])]


def works(facts: Iterable[Fact]) -> bool:
    """Whether echo can work here."""
    return all(fact.state != STOPS for fact in facts)


def _word(value: str | int | bool) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
