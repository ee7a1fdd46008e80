"""A plan as text: its tables, and why one feature map is stashed or recomputed and what a change would cost."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence

from echo.errors import OptionError
from echo.plans.decisions import RECOMPUTE, STASH, Decision, Memory, MissedFusion, near_misses
from echo.system.terminal import megabytes, size_text, text_of

if TYPE_CHECKING:
    from rich.table import Table

# Totals, memory by kind and by layer, and the largest decisions with their reasons.

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
    maps = Counter(decision.name for decision in decisions)
    for action in (RECOMPUTE, STASH):
        groups = _groups(decision for decision in decisions if decision.action == action)
        if groups:
            tables.append(_decisions(action, groups, maps))
    groups_of_missed = near_misses(missed)
    if groups_of_missed:
        tables.append(_not_fused(groups_of_missed))
    return text_of([head, *tables, *(f"note: {remark}" for remark in remarks)], _WIDTH)


def _memory(before: Memory, after: Memory) -> Table:
    table = table_of("memory (MB)", "before", "after")
    table.add_row("planned by MXNet", megabytes(before.planned), megabytes(after.planned))
    table.add_row("  of it alive at the peak", megabytes(before.live_peak), megabytes(after.live_peak))
    _rows(table, before.at_peak, after.at_peak, "    ")
    _rows(table, before.static, after.static, "")
    table.add_row("held by the executor", megabytes(before.total), megabytes(after.total))
    return table


def _rows(table: Table, before: Mapping[str, int], after: Mapping[str, int], indent: str) -> None:
    for kind in dict.fromkeys([*before, *after]):
        table.add_row(indent + kind, megabytes(before.get(kind, 0)), megabytes(after.get(kind, 0)))


def _layers(before: Memory, after: Memory) -> Table:
    table = table_of("stashed feature maps by layer (MB)", "before", "after")
    for name, *sizes in largest_rows([before.layers, after.layers], _MOST_LAYERS):
        table.add_row(name, *map(megabytes, sizes))
    return table


def largest_rows(columns: Sequence[Mapping[str, int]], most: int) -> Iterator[tuple[Any, ...]]:
    """Yields the rows with the largest sizes as a name and a size of each column, and one for what is left."""
    names = sorted(
        dict.fromkeys(chain.from_iterable(columns)), key=lambda name: -max(at.get(name, 0) for at in columns)
    )
    for name in names[:most]:
        yield (name, *(column.get(name, 0) for column in columns))
    rest = names[most:]
    if rest:
        yield (f"{len(rest)} more", *(sum(column.get(name, 0) for name in rest) for column in columns))


def _groups(decisions: Iterable[Decision]) -> list[list[Decision]]:
    """Decisions on alike feature maps together (operator, size), the largest group first."""
    groups: dict[tuple[str, int, int], list[Decision]] = {}
    for decision in decisions:
        groups.setdefault((decision.op, decision.output, decision.bytes), []).append(decision)
    return sorted(groups.values(), key=lambda group: -sum(decision.bytes for decision in group))


def _decisions(action: str, groups: list[list[Decision]], maps: Mapping[str, int]) -> Table:
    table = table_of(action, "maps", "MB", *(["ms"] if action == RECOMPUTE else []))
    table.add_column("for example", overflow="fold")
    table.add_column("why", overflow="fold")
    for group in groups[:_MOST_DECISIONS]:
        size, seconds = sum(item.bytes for item in group), sum(item.seconds for item in group)
        cost = [f"{1000 * seconds:.2f}"] if action == RECOMPUTE else []
        first = group[0]
        table.add_row(first.op, str(len(group)), megabytes(size), *cost, _called(first, maps), first.reason)
    return table


def _called(decision: Decision, maps: Mapping[str, int]) -> str:
    """The name by which `why` finds a feature map; ``maps`` says how many each node has."""
    alone = not decision.output and maps[decision.name] == 1
    return decision.name if alone else f"{decision.name}:{decision.output}"


def _not_fused(groups: list[list[MissedFusion]]) -> Table:
    """Places at which a pattern was nearly found, those with the same reason together."""
    table = table_of("not fused", "places")
    table.add_column("for example", overflow="fold")
    table.add_column("because", overflow="fold")
    for group in groups:
        patterns = ", ".join(dict.fromkeys(missed.pattern for missed in group))
        table.add_row(patterns, str(len(group)), group[0].name, group[0].reason)
    return table


def table_of(heading: str, *numbers: str) -> Table:
    """Returns an empty table with one column of words, and columns of numbers."""
    return _with_numbers({}, (heading,), numbers)


def titled_table(title: str, *numbers: str, words: Sequence[str] = ()) -> Table:
    """Returns an empty table below a title, with columns of words, and of numbers."""
    return _with_numbers({"title": title, "title_justify": "left"}, words, numbers)


def _with_numbers(options: Mapping[str, Any], words: Sequence[str], numbers: Sequence[str]) -> Table:
    from rich.table import Table  # rich is needed to print, not to plan

    table = Table(*words, **options)
    for each in numbers:
        table.add_column(each, justify="right")
    return table


_LEAST_LEFT_OUT = 0.01  # of a step: leaving out less recomputation makes no step faster that one would notice


def faster_advice(recomputation: float) -> str:
    """How a step gets faster, if the predicted part of it that is recomputation can be the reason; else empty."""
    return "a smaller max_overhead or heavy='never' leaves out recomputation" * (recomputation >= _LEAST_LEFT_OUT)


# Why one feature map is stashed or recomputed, and what it would cost to change that.

NOT_KNOWN = "what a change would cost is known to the plan that echo.plan returns, not to one that was loaded"
_OPPOSITE = {"recompute": "stashed", "stash": "recomputed"}
_IS = {"recompute": "recomputed", "stash": "stashed"}


@dataclass(frozen=True)
class Cost:
    """A plan with another decision: ``planned`` bytes under the plan's own storage, ``seconds`` of recomputation."""

    planned: int
    seconds: float


@dataclass(frozen=True)
class Alternative:
    """The cost of a plan with one decision reversed: ``alone``, and ``together`` with ``alike`` others.

    The others are on feature maps of the same class, such as equal ones of all time steps or layers: where one alone
    changes little, all of them may change much. A cost is None where there is no such plan, and ``note`` says why.
    """

    alone: Cost | None = None
    together: Cost | None = None
    alike: int = 0
    note: str = ""


Alternatives = Callable[[Decision], Alternative]


@dataclass(frozen=True)
class Why:
    """The answer of `Plan.why`: the decision with its reason, and what the plan and its alternative cost."""

    decision: Decision
    plan: Cost
    alternative: Alternative

    def __str__(self) -> str:
        decision = self.decision
        size = size_text(decision.bytes)
        lines = [
            f"{decision.name}:{decision.output} ({decision.op}, {size}) is {_IS[decision.action]}",
            f"  why: {decision.reason}",
            f"  the plan: {size_text(self.plan.planned)} planned, {1000 * self.plan.seconds:.2f} ms of recomputation",
        ]
        opposite = _OPPOSITE[decision.action]
        if self.alternative.alone is not None:
            lines.append(f"  {opposite} instead: {self._cost(self.alternative.alone)}")
        if self.alternative.together is not None:
            lines.append(f"  {opposite} with {self.alternative.alike} alike: {self._cost(self.alternative.together)}")
        if self.alternative.note:
            lines.append(f"  note: {self.alternative.note}")
        return "\n".join(lines)

    def _cost(self, cost: Cost) -> str:
        more, slower = cost.planned - self.plan.planned, cost.seconds - self.plan.seconds
        change = f"{'-' if more < 0 else '+'}{size_text(abs(more))}"
        return (
            f"{size_text(cost.planned)} planned ({change}), {1000 * cost.seconds:.2f} ms of recomputation "
            f"({1000 * slower:+.2f} ms)"
        )


@dataclass(frozen=True)
class NotFused:
    """The answer of `Plan.why` for a node at which patterns were nearly found: each with the reason why it was not."""

    missed: tuple[MissedFusion, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.missed))


def why(
    name: str,
    decisions: Sequence[Decision],
    near_misses: Sequence[MissedFusion],
    cost: Cost,
    alternatives: Alternatives | None,
) -> Why | NotFused:
    """See `echo.plans.plan.Plan.why`: the answer from a plan's decisions, its near-misses and its cost."""
    if not isinstance(name, str):
        raise OptionError(f"why: expected the name of a feature map, got {type(name).__name__}")
    nodes = {name, name.rpartition(":")[0]}
    missed = tuple(missed_fusion for missed_fusion in near_misses if missed_fusion.name in nodes)
    if missed and all(decision.name not in nodes for decision in decisions):
        return NotFused(missed)
    decision = _find(decisions, name)
    alternative = Alternative(note=NOT_KNOWN) if alternatives is None else alternatives(decision)
    if missed:
        alternative = replace(alternative, note="; ".join(filter(None, [alternative.note, *map(str, missed)])))
    return Why(decision, cost, alternative)


def _find(decisions: Sequence[Decision], name: str) -> Decision:
    full = {f"{decision.name}:{decision.output}": decision for decision in decisions}
    if name in full:
        return full[name]
    keys = [key for key, decision in full.items() if decision.name == name]
    if len(keys) == 1:
        return full[keys[0]]
    if keys:
        raise OptionError(f"{name!r} has {len(keys)} feature maps, expected one of {', '.join(keys[:8])}")
    maps = Counter(decision.name for decision in decisions)
    names = [_called(decision, maps) for decision in full.values()]
    close = [each for each in names if name in each][:4] or difflib.get_close_matches(name, names, n=4, cutoff=0.5)
    hint = f", did you mean {', '.join(close)}" if close else f", as {', '.join(names[:4])}" if names else ""
    raise OptionError(f"no gradient reads a feature map named {name!r}: expected one of the plan's {len(full)}{hint}")
