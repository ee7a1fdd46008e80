"""The text of a profile, bytes by kind, by layer and measured; the gain from more memory; and two profiles compared."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from rich.console import RenderableType
from rich.table import Table

from echo.errors import OptionError
from echo.plans.frontier import LEFT_OUT
from echo.plans.text import largest_rows, table_of, titled_table
from echo.report.usage import ALWAYS, DEVICE, MIRROR, PLANNED, PROCESS, UNWRITTEN, Layer, Profiled, Usage, layer_of
from echo.system.terminal import change_text, megabytes, preserve_python_rng, text_of

# The gain from a little more memory, in words.

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


# The memory of a real step of each graph, as rows of a table.

REST = "not accounted for"
_NOTHING = "-"


def rows(profile: Profiled) -> list[tuple[str, list[str]]]:
    """A row for each thing that was watched: its name, and the MB by which it grew, graph by graph.

    Those of the parts add up to the growth of the process: what takes no memory is negative, and the last row, `REST`,
    is the unaccounted growth, also in per cent. Without measurements there are no rows.
    """
    usages = list(profile.usages.values())
    names = list(dict.fromkeys(name for usage in usages for name in usage.measured))
    if not names:
        return []
    watched = [(name, [_megabytes(_signed(name, usage.measured.get(name))) for usage in usages]) for name in names]
    return [*watched, (REST, list(map(_rest, usages)))]


def _signed(name: str, size: int | None) -> int | None:
    return -size if name == UNWRITTEN and size else size


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
    totals = ", ".join(f"{name} {megabytes(usage.total)} MB" for name, usage in profile.usages.items())
    head = f"echo profile ({profile.device}), held by the executor: {totals}"
    tables = (_kinds(profile), _layers(profile, layer), *_frontier(profile), *_largest(profile))
    notes = (f"note: {note}" for note in profile.plan.remarks) if PLANNED in profile.usages else ()
    return text_of([head, *tables, *notes], _WIDTH)


def _kinds(profile: Profiled) -> Table:
    table, usages = table_of("at the peak, by kind (MB)", *profile.usages), profile.usages.values()
    columns = [usage.by_kind for usage in usages]
    for kind in dict.fromkeys(kind for column in columns for kind in column):
        table.add_row(kind, *(megabytes(column.get(kind, 0)) for column in columns))
    table.add_section()
    table.add_row("held by the executor", *(megabytes(usage.total) for usage in usages))
    table.add_row("of it planned by MXNet", *(megabytes(usage.planned) for usage in usages), end_section=True)
    for name, cells in rows(profile):
        table.add_row(f"{'measured growth: ' if name in (PROCESS, DEVICE) else '  of it '}{name}", *cells)
    if PLANNED in profile.usages:
        table.add_section()
        plan = profile.plan
        times = {PLANNED: f"{100 * (plan.time_ratio - 1):+.1f} %", MIRROR: "not predicted"}
        table.add_row("time of a step, predicted", *(times.get(name, "") for name in profile.usages))
        again = {PLANNED: f"+{100 * plan.overhead:.1f} %"}
        table.add_row("of it recomputation", *(again.get(name, "") for name in profile.usages))
    return table


def _layers(profile: Profiled, layer: Layer) -> Table:
    table = table_of("at the peak, by layer (MB)", *profile.usages)
    for name, *sizes in largest_rows([usage.layers(layer) for usage in profile.usages.values()], _MOST_LAYERS):
        table.add_row(name, *map(megabytes, sizes))
    return table


def _frontier(profile: Profiled) -> Iterable[RenderableType]:
    if not profile.frontier:
        return
    table = titled_table(
        "what other budgets buy", "budget, MB", "held by the executor, MB", "time of a step, predicted"
    )
    this = {"total": profile.plan.after.total, "time": profile.plan.time_ratio}
    for row in sorted([*profile.frontier, this], key=lambda row: row["total"]):
        budget = "this plan" if row is this else megabytes(row["budget"])
        table.add_row(budget, megabytes(row["total"]), f"{100 * (row['time'] - 1):+.1f} %")
    yield table
    yield LEFT_OUT
    yield f"{more_memory(profile)} (predicted)"


def _largest(profile: Profiled) -> Iterable[Table]:
    for name, usage in profile.usages.items():
        if not usage.steps:
            continue
        title = f"{name}: largest arrays at the peak, {usage.moment}"
        table = titled_table(title, "MB", "from step", "to step", words=("array", "operator", "kind"))
        for tensor in usage.at_peak[:_MOST_ARRAYS]:
            span = ("always", "") if tensor.first == ALWAYS else (str(tensor.first), str(tensor.last))
            table.add_row(tensor.name, tensor.op, tensor.kind, megabytes(tensor.bytes), *span)
        yield table


# The difference of two profiles: what grew and what shrank, by graph, kind and layer.

_LEAST = 1 << 10  # bytes: smaller changes are left out


def difference(before: Profiled, after: Profiled, layer: Layer = layer_of) -> str:
    """Both profiles as tables, for each graph that both have: before, after and the change, in MB.

    Raises:
        OptionError: they have no graph in common.
    """
    graphs = _common(before, after)
    with preserve_python_rng():
        parts: list[RenderableType] = []
        for name in graphs:
            parts += _tables(name, before.usages[name], after.usages[name], layer)
        if PLANNED in graphs:
            old, new = before.plan.time_text(), after.plan.time_text()
            parts.append(f"predicted: {old} before, {new} after")
        return text_of(parts, _WIDTH)


def difference_rows(before: Profiled, after: Profiled, layer: Layer = layer_of) -> list[dict[str, Any]]:
    """The same as values: ``graph``, ``by`` ("total", "kind" or "layer"), ``name``, and bytes ``before`` and ``after``.

    Raises:
        OptionError: they have no graph in common.
    """
    differences = []
    for graph in _common(before, after):
        old, new = before.usages[graph], after.usages[graph]
        groups = {
            "total": {"held by the executor": (old.total, new.total), "planned by MXNet": (old.planned, new.planned)},
            "kind": _pairs(old.by_kind, new.by_kind),
            "layer": _pairs(old.layers(layer), new.layers(layer)),
        }
        for by, pairs in groups.items():
            differences += [
                {"graph": graph, "by": by, "name": name, "before": a, "after": b} for name, (a, b) in pairs.items()
            ]
    return differences


def _common(before: Profiled, after: Profiled) -> list[str]:
    graphs = [name for name in before.usages if name in after.usages]
    if not graphs:
        raise OptionError(f"expected profiles of the same graphs, got {list(before.usages)} and {list(after.usages)}")
    return graphs


def _tables(name: str, before: Usage, after: Usage, layer: Layer) -> Iterable[Table]:
    held, planned = (before.total, after.total), (before.planned, after.planned)
    totals = {"held by the executor": held, "of it planned by MXNet": planned}
    yield _changes(f"{name}: at the peak, by kind (MB)", _pairs(before.by_kind, after.by_kind), totals)
    yield _changes(f"{name}: at the peak, by layer (MB)", _pairs(before.layers(layer), after.layers(layer)), {})


def _pairs(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    return {name: (before.get(name, 0), after.get(name, 0)) for name in dict.fromkeys([*before, *after])}


def _changes(title: str, rows: Mapping[str, tuple[int, int]], totals: Mapping[str, tuple[int, int]]) -> Table:
    table = table_of(title, "before", "after", "change")
    changes = {name: abs(after - before) for name, (before, after) in rows.items()}
    changed = sorted((name for name in rows if changes[name] >= _LEAST), key=changes.__getitem__, reverse=True)
    for name in changed[:_MOST_LAYERS]:
        _row(table, name, *rows[name])
    rest = [name for name in rows if name not in changed[:_MOST_LAYERS]]
    if rest:
        before, after = (sum(rows[name][side] for name in rest) for side in (0, 1))
        _row(table, f"{len(rest)} {'more' if changed else 'unchanged'}", before, after)
    table.add_section()
    for name, pair in totals.items():
        _row(table, name, *pair)
    return table


def _row(table: Table, name: str, before: int, after: int) -> None:
    table.add_row(name, megabytes(before), megabytes(after), change_text(before, after))
