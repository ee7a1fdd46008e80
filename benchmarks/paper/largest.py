"""The largest batch, and the most layers, with which translation ("tbd") trains in 12 GB, without and with echo.

    python -m benchmarks.paper.largest [--fresh]

All that the executor holds has to fit: planned memory, workspaces of fused operators, weights, gradients and
inputs; a GPU also holds MXNet's context, in every case. Writes results/paper_largest.json after each row:
existing rows are searched again only with --fresh.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.paper.nmt import SETTINGS
from benchmarks.paper.planning import Found, Results, fill, measure_from_command_line, way
from benchmarks.paper.sweeps import WAYS, model

NAME = "paper_largest"
LIMIT = 12 * 2**30
QUANTITIES = ("batch", "layers")


def largest(held: Callable[[int], int], limit: int, start: int) -> int:
    """The number from which one more does not fit, for memory that grows about linearly with it; 0 if none fits.

    Each number tried lies where the line through the two nearest known ones meets the limit.
    """
    known = {number: held(number) for number in (start, 2 * start)}
    while True:
        fitting = max((number for number, size in known.items() if size <= limit), default=0)
        over = min((number for number, size in known.items() if size > limit and number > fitting), default=None)
        if over == fitting + 1:
            return fitting
        least, most = fitting + 1, 2 * max(known) if over is None else over - 1
        guess = min(max(_meets(known, limit), least), most)
        known[guess] = held(guess)


def _meets(known: dict[int, int], limit: int) -> int:
    """The point where the line through the two known points nearest to the limit meets it, rounded down."""
    (x1, y1), (x2, y2) = sorted(known.items(), key=lambda point: abs(point[1] - limit))[:2]
    return x1 if y1 == y2 else int(x1 + (limit - y1) * (x2 - x1) / (y2 - y1))


def run(fresh: bool = False) -> list[Found]:
    """Searches both quantities in each way."""
    results = Results(NAME, fresh)
    rows = [results.row(quantity=quantity) for quantity in QUANTITIES]
    results.fill_side_by_side([row for row in rows if not row.keys() >= {*WAYS}], _filled)
    return rows


def _filled(row: Found) -> Found:
    """The row with a figure for each way."""
    for name in WAYS:
        fill(NAME, row, name, partial(_search, row["quantity"], name))
    return row


def _search(quantity: str, name: str) -> Found:
    """The largest value, the bytes held there, and those of one more."""
    tried: dict[int, Found] = {}

    def held(value: int) -> int:
        tried[value] = way(model(quantity, value), name)
        print(f"{name}, {quantity} {value}: {tried[value]['total'] / 2**30:.2f} GB", flush=True)
        return int(tried[value]["total"])

    found = largest(held, LIMIT, getattr(SETTINGS["tbd"], quantity))
    return {"largest": found, **tried[found], "next_total": tried[found + 1]["total"]}


if __name__ == "__main__":
    measure_from_command_line(__doc__, run)
