"""The difference of two plans: memory, the time of a step, and what only one of them fuses or recomputes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator

from echo.plans.decisions import Decision
from echo.plans.plan import Plan
from echo.plans.text import largest_rows, table_of
from echo.system.terminal import change_text, counted, megabytes, preserve_python_rng, text_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_WIDTH = 120
_MOST_OPERATORS, _MOST_NOTES = 12, 3
_COLUMNS = ("this plan", "other plan", "change")
_ORIGINAL, _PLANNED = "original graph", "planned graph"

_Row = Dict[str, Any]

# As values: a row for each figure of the two plans.


def difference_rows(this: Plan, other: Plan) -> list[_Row]:
    """The difference as values: ``by``, ``name``, and a value of ``this`` plan and of the ``other``.

    By "memory" these are bytes; by "time" predicted seconds of a step, None if not known; by "fused" the number of
    places of a pattern; by "recomputed" the bytes of an operator's feature maps that only this plan recomputes, or only
    the other, with the numbers of these ``maps`` and an ``example``.
    """
    return [*_memory(this, other), *_times(this, other), *_fused(this, other), *_recomputed(this, other)]


def _row(by: str, name: str, this: Any, other: Any) -> _Row:
    return {"by": by, "name": name, "this": this, "other": other}


def _memory(this: Plan, other: Plan) -> Iterator[_Row]:
    yield _row("memory", f"planned by MXNet, {_ORIGINAL}", this.before.planned, other.before.planned)
    yield _row("memory", f"planned by MXNet, {_PLANNED}", this.after.planned, other.after.planned)
    yield _row("memory", f"held by the executor, {_ORIGINAL}", this.before.total, other.before.total)
    yield _row("memory", f"held by the executor, {_PLANNED}", this.after.total, other.after.total)
    for kind in dict.fromkeys([*this.after.static, *other.after.static]):
        sizes = this.after.static.get(kind, 0), other.after.static.get(kind, 0)
        if sizes[0] != sizes[1]:
            yield _row("memory", f"of it {kind}", *sizes)


def _times(this: Plan, other: Plan) -> Iterator[_Row]:
    yield _row("time", _ORIGINAL, this.stock_seconds, other.stock_seconds)
    yield _row("time", _PLANNED, *(plan.step_seconds + plan.overhead_seconds for plan in (this, other)))
    yield _row("time", "of it recomputation", this.overhead_seconds, other.overhead_seconds)


def _fused(this: Plan, other: Plan) -> Iterator[_Row]:
    places = [Counter(pattern for pattern, _ in plan.fused) for plan in (this, other)]
    for pattern in sorted(places[0] | places[1]):
        yield _row("fused", pattern, *(count[pattern] for count in places))


def _recomputed(this: Plan, other: Plan) -> Iterator[_Row]:
    """Yields a row for each operator with maps that only one plan recomputes, the most bytes first."""
    sides = [_recomputed_only_in(this, other), _recomputed_only_in(other, this)]
    sizes = [_sums((decision.op, decision.bytes) for decision in side) for side in sides]
    maps = [_sums((decision.op, 1) for decision in side) for side in sides]
    examples = {decision.op: decision.name for decision in (*sides[1][::-1], *sides[0][::-1])}
    for op, *bytes_of_op in largest_rows(sizes, len(examples)):
        numbers = [count[op] for count in maps]
        yield {**_row("recomputed", op, *bytes_of_op), "maps": numbers, "example": examples[op]}


def _sums(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for name, amount in pairs:
        sums[name] += amount
    return sums


def _recomputed_only_in(plan: Plan, other: Plan) -> list[Decision]:
    """The feature maps that a plan recomputes and the other one does not.

    Numbers of nodes tell maps of the same graph apart, since automatic names differ between processes.
    """
    same = plan.key.graph == other.key.graph and plan.fused == other.fused

    def identity(decision: Decision) -> tuple[object, int]:
        return decision.node if same else decision.name, decision.output

    others = set(map(identity, other.recomputed))
    return [decision for decision in plan.recomputed if identity(decision) not in others]


# As text: a line for each plan, and tables.


def difference(this: Plan, other: Plan) -> str:
    """The difference as a text of at most 120 columns, with notes if the plans are for different graphs or shapes."""
    rows = difference_rows(this, other)
    with preserve_python_rng():
        parts: list[RenderableType] = [f"this plan:  {this.summary()}", f"other plan: {other.summary()}"]
        parts += [_memory_table(rows), _time_table(rows)]
        parts += [table for table in (_fused_table(rows), _recomputed_table(rows)) if table.row_count]
        return text_of([*parts, *_notes(this, other)], _WIDTH)


def _of(rows: list[_Row], by: str) -> Iterator[tuple[str, Any, Any]]:
    return ((row["name"], row["this"], row["other"]) for row in rows if row["by"] == by)


def _memory_table(rows: list[_Row]) -> Table:
    table = table_of("memory (MB)", *_COLUMNS)
    for name, this, other in _of(rows, "memory"):
        table.add_row(name, megabytes(this), megabytes(other), change_text(this, other))
    return table


def _time_table(rows: list[_Row]) -> Table:
    table = table_of("time of a step, predicted (ms)", *_COLUMNS)
    for name, *seconds in _of(rows, "time"):
        first, second = (None if each is None else round(1000 * each, 2) for each in seconds)
        cells = ("not known" if each is None else f"{each:,.2f}" for each in (first, second))
        change = "" if first is None or second is None else f"{second - first:+,.2f}"
        table.add_row(name, *cells, change)
    return table


def _fused_table(rows: list[_Row]) -> Table:
    table = table_of("fused operators", *_COLUMNS)
    for name, this, other in _of(rows, "fused"):
        table.add_row(name, str(this), str(other), f"{other - this:+d}" if other != this else "0")
    return table


def _recomputed_table(rows: list[_Row]) -> Table:
    table = table_of("recomputed by one plan only", "maps, this plan", "MB", "maps, other plan", "MB")
    table.add_column("for example", overflow="fold")
    recomputed = [row for row in rows if row["by"] == "recomputed"]
    for row in recomputed[:_MOST_OPERATORS]:
        table.add_row(row["name"], *_cells([row]), row["example"])
    rest = recomputed[_MOST_OPERATORS:]
    if rest:
        table.add_row(f"{len(rest)} more", *_cells(rest), "")
    return table


def _cells(rows: list[_Row]) -> Iterator[str]:
    for side, name in enumerate(("this", "other")):
        yield str(sum(row["maps"][side] for row in rows))
        yield megabytes(sum(row[name] for row in rows))


def _notes(this: Plan, other: Plan) -> Iterator[str]:
    """Yields the differences of what the plans were made for; a plan has no names of arguments, but their numbers."""
    names = list(map(str, range(len(this.key.arguments))))
    differences = list(this.key.differences(other.key, names))
    if not differences and this.step_seconds != other.step_seconds:
        yield "note: the times of the original graph differ because its operators were measured again"
    for text in differences[:_MOST_NOTES]:
        yield f"note: the other plan was made for something else: {text}"
    if len(differences) > _MOST_NOTES:
        yield f"note: and {counted(len(differences) - _MOST_NOTES, 'more difference')} of this kind"
