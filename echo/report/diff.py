"""The difference of two profiles: what grew, what shrank, by graph, kind and layer."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from rich.console import RenderableType
from rich.table import Table

from echo.errors import OptionError
from echo.report.profile import Profile
from echo.report.usage import PLANNED, Layer, Usage, layer_of
from echo.system.terminal import MB, megabytes, preserve_python_rng, text_of

_WIDTH = 120
_MOST = 12
_LEAST = 1 << 10  # bytes: smaller changes are left out


def difference(before: Profile, after: Profile, layer: Layer = layer_of) -> str:
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


def rows(before: Profile, after: Profile, layer: Layer = layer_of) -> list[dict[str, Any]]:
    """The same as values: ``graph``, ``by`` ("total", "kind" or "layer"), ``name``, and bytes ``before`` and ``after``.

    Raises:
        OptionError: they have no graph in common.
    """
    differences = []
    for graph in _common(before, after):
        old, new = before.usages[graph], after.usages[graph]
        groups = {
            "total": {"all of it": (old.total, new.total), "planned by MXNet": (old.planned, new.planned)},
            "kind": _pairs(old.by_kind, new.by_kind),
            "layer": _pairs(old.layers(layer), new.layers(layer)),
        }
        for by, pairs in groups.items():
            differences += [
                {"graph": graph, "by": by, "name": name, "before": a, "after": b} for name, (a, b) in pairs.items()
            ]
    return differences


def _common(before: Profile, after: Profile) -> list[str]:
    graphs = [name for name in before.usages if name in after.usages]
    if not graphs:
        raise OptionError(f"expected profiles of the same graphs, got {list(before.usages)} and {list(after.usages)}")
    return graphs


def _tables(name: str, before: Usage, after: Usage, layer: Layer) -> Iterable[Table]:
    totals = {"all of it": (before.total, after.total), "of it planned by MXNet": (before.planned, after.planned)}
    yield _table(f"{name}: at the peak, by kind (MB)", _pairs(before.by_kind, after.by_kind), totals)
    yield _table(f"{name}: at the peak, by layer (MB)", _pairs(before.layers(layer), after.layers(layer)), {})


def _pairs(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    return {name: (before.get(name, 0), after.get(name, 0)) for name in dict.fromkeys([*before, *after])}


def _table(title: str, rows: Mapping[str, tuple[int, int]], totals: Mapping[str, tuple[int, int]]) -> Table:
    table = Table(title, title_justify="left")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    changes = {name: abs(after - before) for name, (before, after) in rows.items()}
    changed = sorted((name for name in rows if changes[name] >= _LEAST), key=changes.__getitem__, reverse=True)
    for name in changed[:_MOST]:
        _row(table, name, *rows[name])
    rest = [name for name in rows if name not in changed[:_MOST]]
    if rest:
        before, after = (sum(rows[name][side] for name in rest) for side in (0, 1))
        table.add_row(
            f"{len(rest)} {'more' if changed else 'unchanged'}",
            megabytes(before),
            megabytes(after),
            _change(before, after),
        )
    table.add_section()
    for name, pair in totals.items():
        _row(table, name, *pair)
    return table


def _row(table: Table, name: str, before: int, after: int) -> None:
    table.add_row(name, megabytes(before), megabytes(after), _change(before, after))


def _change(before: int, after: int) -> str:
    if before == after:
        return "0.0"
    percent = f" ({100 * (after - before) / before:+.0f} %)" if before else ""
    return f"{(after - before) / MB:+,.1f}{percent}"
