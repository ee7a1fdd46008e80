"""A plan as text: totals, memory by kind and by layer, and the largest decisions with their reasons."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Mapping, Sequence

from rich.table import Table

from echo.plans.decisions import RECOMPUTE, STASH, Decision, Memory, MissedFusion, near_misses
from echo.system.terminal import megabytes, text_of

_WIDTH = 120
_MOST_LAYERS, _MOST_DECISIONS = 8, 8


def render(
    head: str,
    before: Memory,
    after: Memory,
    decisions: Sequence[Decision],
    missed: Sequence[MissedFusion],
    remarks: Iterable[str],
) -> str:
    """The values of a plan as a text of at most 120 columns."""
    tables = [_memory(before, after)]
    if before.layers:
        tables.append(_layers(before, after))
    for action in (RECOMPUTE, STASH):
        groups = _groups(decision for decision in decisions if decision.action == action)
        if groups:
            tables.append(_decisions(action, groups))
    groups_of_missed = near_misses(missed)
    if groups_of_missed:
        tables.append(_not_fused(groups_of_missed))
    return text_of([head, *tables, *(f"note: {remark}" for remark in remarks)], _WIDTH)


def _memory(before: Memory, after: Memory) -> Table:
    table = Table("memory (MB)", title_justify="left")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    table.add_row("planned by MXNet", megabytes(before.planned), megabytes(after.planned))
    table.add_row("alive at the peak", megabytes(before.live_peak), megabytes(after.live_peak))
    _rows(table, before.at_peak, after.at_peak, "  ")
    _rows(table, before.static, after.static, "")
    table.add_row("all of it", megabytes(before.total), megabytes(after.total))
    return table


def _rows(table: Table, before: Mapping[str, int], after: Mapping[str, int], indent: str) -> None:
    for kind in dict.fromkeys([*before, *after]):
        table.add_row(indent + kind, megabytes(before.get(kind, 0)), megabytes(after.get(kind, 0)))


def _layers(before: Memory, after: Memory) -> Table:
    table = Table("stashed maps by layer (MB)")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    both = [Counter(memory.layers) for memory in (before, after)]
    layers = sorted(both[0] | both[1], key=lambda layer: -max(memory[layer] for memory in both))
    for layer in layers[:_MOST_LAYERS]:
        table.add_row(layer, *(megabytes(memory[layer]) for memory in both))
    rest = layers[_MOST_LAYERS:]
    if rest:
        table.add_row(f"{len(rest)} more", *(megabytes(sum(memory[layer] for layer in rest)) for memory in both))
    return table


def _groups(decisions: Iterable[Decision]) -> list[list[Decision]]:
    """Decisions on alike maps together (operator, size), the largest group first."""
    groups: dict[tuple[str, int, int], list[Decision]] = {}
    for decision in decisions:
        groups.setdefault((decision.op, decision.output, decision.bytes), []).append(decision)
    return sorted(groups.values(), key=lambda group: -sum(decision.bytes for decision in group))


def _decisions(action: str, groups: list[list[Decision]]) -> Table:
    table = Table(action)
    for heading in ("maps", "MB", "ms"):
        table.add_column(heading, justify="right")
    table.add_column("for example", overflow="fold")
    table.add_column("why", overflow="fold")
    for group in groups[:_MOST_DECISIONS]:
        size, seconds = sum(item.bytes for item in group), sum(item.seconds for item in group)
        cost = f"{1000 * seconds:.2f}" if action == RECOMPUTE else ""
        table.add_row(group[0].op, str(len(group)), megabytes(size), cost, group[0].name, group[0].reason)
    return table


def _not_fused(groups: list[list[MissedFusion]]) -> Table:
    """Places at which a pattern was nearly found, those with the same reason together."""
    table = Table("not fused")
    table.add_column("places", justify="right")
    table.add_column("for example", overflow="fold")
    table.add_column("because", overflow="fold")
    for group in groups:
        patterns = ", ".join(dict.fromkeys(missed.pattern for missed in group))
        table.add_row(patterns, str(len(group)), group[0].name, group[0].reason)
    return table
