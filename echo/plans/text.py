"""A plan as text: totals, memory by kind and by layer, and the largest decisions with their reasons."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Iterable, Mapping

from rich.console import RenderableType
from rich.table import Table

from echo.plans.decisions import RECOMPUTE, STASH, Decision, Missed, near_misses
from echo.system.terminal import megabytes, text_of

if TYPE_CHECKING:
    from echo.plans.decisions import Decision
    from echo.plans.plan import Plan


_WIDTH = 120
_MOST_LAYERS, _MOST_DECISIONS = 8, 8


def render(plan: Plan) -> str:
    """The plan as a text of at most 120 columns."""
    head = f"echo plan ({plan.policy}, {plan.device}, applied by {plan.applied}): {plan.summary()}"
    notes = (f"note: {remark}" for remark in plan.general_remarks)
    return text_of([head, *_tables(plan), *notes], _WIDTH)


def _tables(plan: Plan) -> Iterable[RenderableType]:
    yield _memory(plan)
    if plan.before.layers:
        yield _layers(plan)
    for action in (RECOMPUTE, STASH):
        groups = _groups(decision for decision in plan.decisions if decision.action == action)
        if groups:
            yield _decisions(action, groups)
    groups_of_missed = near_misses(plan.missed)
    if groups_of_missed:
        yield _not_fused(groups_of_missed)


def _memory(plan: Plan) -> Table:
    table = Table("memory (MB)", title_justify="left")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    table.add_row("planned by MXNet", megabytes(plan.before.planned), megabytes(plan.after.planned))
    table.add_row("alive at the peak", megabytes(plan.before.live_peak), megabytes(plan.after.live_peak))
    _rows(table, plan.before.at_peak, plan.after.at_peak, "  ")
    _rows(table, plan.before.static, plan.after.static, "")
    table.add_row("all of it", megabytes(plan.before.total), megabytes(plan.after.total))
    return table


def _rows(table: Table, before: Mapping[str, int], after: Mapping[str, int], indent: str) -> None:
    for kind in dict.fromkeys([*before, *after]):
        table.add_row(indent + kind, megabytes(before.get(kind, 0)), megabytes(after.get(kind, 0)))


def _layers(plan: Plan) -> Table:
    table = Table("stashed maps by layer (MB)")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    both = [Counter(memory.layers) for memory in (plan.before, plan.after)]
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


def _not_fused(groups: list[list[Missed]]) -> Table:
    """Places at which a pattern was nearly found, those with the same reason together."""
    table = Table("not fused")
    table.add_column("places", justify="right")
    table.add_column("for example", overflow="fold")
    table.add_column("because", overflow="fold")
    for group in groups:
        patterns = ", ".join(dict.fromkeys(missed.pattern for missed in group))
        table.add_row(patterns, str(len(group)), group[0].name, group[0].reason)
    return table
