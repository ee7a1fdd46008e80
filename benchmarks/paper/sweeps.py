"""How does the memory of translation ("tbd") change with layers, hidden units and the batch, without and with echo?

    python -m benchmarks.paper.sweeps [--fresh]

Claims 5 and 7 of the evaluation. Hidden units are those of embeddings and attention, too. Writes
results/paper_sweeps.json after each row: existing rows are planned again only with --fresh.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.models import Model
from benchmarks.paper import nmt
from benchmarks.paper.planning import Found, Results, fill, measure_from_command_line, way

NAME = "paper_sweeps"
SWEEPS = {"layers": (1, 2, 3, 4, 5), "hidden": (256, 512, 1024), "batch": (4, 8, 16, 32, 64, 128)}
WAYS = ("stock", "default", "unfused", "echo")


def model(sweep: str, value: int) -> Model:
    """Translation as "tbd" has it, but for one value."""
    fields = ("hidden", "embedded", "attention") if sweep == "hidden" else (sweep,)
    return nmt.model(f"nmt_tbd, {sweep} {value}", replace(nmt.SETTINGS["tbd"], **dict.fromkeys(fields, value)))


def run(fresh: bool = False) -> list[Found]:
    """Plans each value of each sweep in each way."""
    results = Results(NAME, fresh)
    rows = [results.row(sweep=sweep, value=value) for sweep, values in SWEEPS.items() for value in values]
    results.fill_side_by_side([row for row in rows if not row.keys() >= {*WAYS}], _filled)
    return rows


def _filled(row: Found) -> Found:
    """The row with a figure for each way."""
    swept = model(row["sweep"], row["value"])
    for name in WAYS:
        fill(NAME, row, name, partial(way, swept, name))
    return row


if __name__ == "__main__":
    measure_from_command_line(__doc__, run)
