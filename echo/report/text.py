"""The text of a profile: bytes by kind, by layer and measured, and what more memory would gain."""

from __future__ import annotations

from collections import Counter
from typing import Iterable

from rich.console import RenderableType
from rich.table import Table

from echo.report.usage import ALWAYS, DEVICE, MIRROR, PLANNED, PROCESS, Layer, Profiled, Usage, layer_of
from echo.system.terminal import megabytes, text_of

# What a little more memory would buy, in words.

_MORE = 0.1  # of what the plan's executor holds
_LEAST_TOLD = 0.001  # of a step of stock MXNet: less is noise of the prediction


def more_memory(profile: Profiled) -> str:
    """The fastest plan that takes at most a tenth more memory than the profile's, against it; empty without a frontier.

    Times are predicted, and against a step of the original graph.
    """
    if not profile.frontier:
        return ""
    limit = (1 + _MORE) * profile.plan.after.total
    fitting = [row for row in profile.frontier if row["total"] <= limit]
    fastest = min(fitting, key=lambda row: row["time"], default=None)
    more = f"{100 * _MORE:.0f} % more memory (up to {megabytes(limit)} MB)"
    if fastest is None or fastest["time"] >= profile.plan.time_ratio - _LEAST_TOLD:
        return f"{more} would buy no time"
    plan, before = f"a plan of {megabytes(fastest['total'])} MB", _change(profile.plan.time_ratio)
    return (
        f"{more} would buy {plan}, whose step takes {_change(fastest['time'])} than stock's; this one's takes {before}"
    )


def _change(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.1f} % {'less' if ratio < 1 else 'more'} time"


# What a real step of each graph took, as rows of a table.

REST = "not accounted for"
_NOTHING = "-"


def rows(profile: Profiled) -> list[tuple[str, list[str]]]:
    """A row for each thing that was watched: its name, and the MB by which it grew, graph by graph.

    The last row, `REST`, is what nothing accounts for, also as a part of what the process, or the device, grew by.
    Without measurements there are no rows.
    """
    usages = list(profile.usages.values())
    names = list(dict.fromkeys(name for usage in usages for name in usage.measured))
    if not names:
        return []
    watched = [(name, [_megabytes(usage.measured.get(name)) for usage in usages]) for name in names]
    return [*watched, (REST, list(map(_rest, usages)))]


def _rest(usage: Usage) -> str:
    grown = usage.measured.get(DEVICE) or usage.measured.get(PROCESS)
    if usage.unaccounted is None or not grown:
        return _megabytes(usage.unaccounted)
    return f"{_megabytes(usage.unaccounted)} ({100 * usage.unaccounted / grown:.1f} %)"


def _megabytes(size: int | None) -> str:
    return _NOTHING if size is None else megabytes(size)


# A profile as text: memory by kind and by layer, graphs side by side, and the largest arrays at the peak.

_WIDTH = 120
_MOST_LAYERS, _MOST_ARRAYS = 12, 8


def render(profile: Profiled, layer: Layer = layer_of) -> str:
    """The profile as a text of at most 120 columns; ``layer`` groups arrays in another way than by their layers."""
    head = f"echo profile ({profile.device}): {_summary(profile)}"
    tables = (_kinds(profile), _layers(profile, layer), *_frontier(profile), *_largest(profile))
    notes = (f"note: {note}" for note in profile.plan.remarks) if PLANNED in profile.usages else ()
    return text_of([head, *tables, *notes], _WIDTH)


def _summary(profile: Profiled) -> str:
    return ", ".join(f"{name} {megabytes(usage.total)} MB" for name, usage in profile.usages.items())


def _table(title: str, profile: Profiled) -> Table:
    table = Table(title, title_justify="left")
    for name in profile.usages:
        table.add_column(name, justify="right")
    return table


def _kinds(profile: Profiled) -> Table:
    table, usages = _table("at the peak, by kind (MB)", profile), profile.usages.values()
    columns = [usage.by_kind for usage in usages]
    for kind in dict.fromkeys(kind for column in columns for kind in column):
        table.add_row(kind, *(megabytes(column.get(kind, 0)) for column in columns))
    table.add_section()
    table.add_row("all of it", *(megabytes(usage.total) for usage in usages))
    table.add_row("of it planned by MXNet", *(megabytes(usage.planned) for usage in usages), end_section=True)
    for name, cells in rows(profile):
        table.add_row(f"measured{', ' if name == REST else ': '}{name}", *cells)
    if PLANNED in profile.usages:
        table.add_section()
        plan = profile.plan
        times = {PLANNED: f"{100 * (plan.time_ratio - 1):+.1f} %", MIRROR: "not predicted"}
        table.add_row("time of a step, predicted", *(times.get(name, "") for name in profile.usages))
        again = {PLANNED: f"+{100 * plan.overhead:.1f} %"}
        table.add_row("of it recomputation", *(again.get(name, "") for name in profile.usages))
    return table


def _layers(profile: Profiled, layer: Layer) -> Table:
    table = _table("at the peak, by layer (MB)", profile)
    columns = [Counter(usage.layers(layer)) for usage in profile.usages.values()]
    names = sorted({name for column in columns for name in column}, key=lambda name: -max(at[name] for at in columns))
    for name in names[:_MOST_LAYERS]:
        table.add_row(name, *(megabytes(column[name]) for column in columns))
    rest = names[_MOST_LAYERS:]
    if rest:
        table.add_row(f"{len(rest)} more", *(megabytes(sum(column[name] for name in rest)) for column in columns))
    return table


def _frontier(profile: Profiled) -> Iterable[RenderableType]:
    if not profile.frontier:
        return
    table = Table(title="what other budgets buy", title_justify="left")
    for heading in ("all of it, MB", "time of a step, predicted"):
        table.add_column(heading, justify="right")
    this = {"total": profile.plan.after.total, "time": profile.plan.time_ratio}
    for row in sorted([*profile.frontier, this], key=lambda row: row["total"]):
        note = " (this plan)" if row is this else ""
        table.add_row(megabytes(int(row["total"])), f"{100 * (row['time'] - 1):+.1f} %{note}")
    yield table
    yield f"{more_memory(profile)} (predicted)"


def _largest(profile: Profiled) -> Iterable[Table]:
    for name, usage in profile.usages.items():
        if not usage.steps:
            continue
        table = Table(title=f"{name}: largest arrays at the peak, {usage.moment}", title_justify="left")
        for heading in ("array", "operator", "kind"):
            table.add_column(heading)
        for heading in ("MB", "from step", "to step"):
            table.add_column(heading, justify="right")
        for tensor in usage.at_peak[:_MOST_ARRAYS]:
            span = ("always", "") if tensor.first == ALWAYS else (str(tensor.first), str(tensor.last))
            table.add_row(tensor.name, tensor.op, tensor.kind, megabytes(tensor.bytes), *span)
        yield table
