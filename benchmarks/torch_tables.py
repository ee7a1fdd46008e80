"""The tables and the picture of docs/torch.md, from results/torch_frontier.json and results/torch_measured.json.

python -m benchmarks.torch_tables
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from benchmarks.paper.tables import table
from benchmarks.record import RESULTS, load, parser

PICTURE = RESULTS / "torch_frontier.png"
_NOTHING = 1e-4  # of a step: recomputation below that is none, and no ratio is formed of it

SAME = 1.03  # times a peak: as much memory

Row = Mapping[str, Any]


class Comparison(NamedTuple):
    """Torch's partitioner and echo on one graph.

    ``least`` are the lowest peaks in bytes, by torch and by echo, with the recomputation there as a part of the step.
    ``echo_at_least`` is echo's recomputation at torch's lowest peak. ``ratios`` are echo's recomputation over the least
    of torch's at no higher peak, for each budget at which torch recomputes something.
    """

    least: tuple[tuple[int, float], tuple[int, float]]
    echo_at_least: float
    ratios: tuple[float, ...]
    planning: tuple[float, float]


def compared(rows: Sequence[Row]) -> Comparison:
    """Compares the rows of one model."""
    torchs = [row for row in rows if row["by"] != "echo"]
    echos = [row for row in rows if row["by"] == "echo" and "overhead" in row]
    ends = [min((row["peak_bytes"], row["overhead"]) for row in own) for own in (torchs, echos)]
    ratios = []
    for row in echos:
        best = min((one["overhead"] for one in torchs if one["peak_bytes"] <= row["budget_bytes"]), default=0.0)
        if best > _NOTHING:
            ratios.append(row["overhead"] / best)
    there = max((row for row in echos if row["budget_bytes"] <= ends[0][0]), key=lambda row: row["budget_bytes"])
    seconds = [statistics.median(row["planning_seconds"] for row in own) for own in (torchs, echos)]
    return Comparison((ends[0], ends[1]), there["overhead"], tuple(ratios), (seconds[0], seconds[1]))


def by_model(rows: Iterable[Row], *more: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each model, or of each that has the same values under ``more`` names, too."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in ("model", *more)), []).append(row)
    return found


def frontier_table(result: Mapping[str, Any]) -> str:
    """A line for each model: least peaks, recomputation there, and echo's share of torch's at all of torch's peaks."""

    models = by_model(result["rows"], "fused")

    def cells(name: str) -> list[str]:
        plain, fused = (compared(models[name, fused]) for fused in (False, True))
        row = models[name, False][0]
        (torch_least, torch_work), (echo_least, echo_work) = plain.least
        ends = [f"{torch_least / 1e6:.1f} at {100 * torch_work:.1f} %", f"{100 * plain.echo_at_least:.1f} %",
                f"{echo_least / 1e6:.1f} at {100 * echo_work:.1f} %"]  # fmt: skip
        shares = [f"{statistics.median(one.ratios):.2f} ({max(one.ratios):.2f})" for one in (plain, fused)]
        seconds = [f"{one:.1f}" for one in plain.planning]
        return [name, str(row["nodes"]), f"{row['stock_bytes'] / 1e6:.1f}", *ends, *shares, *seconds]

    columns = (
        "model | nodes | MB | torch's least MB | **echo there** | echo's least MB "
        "| **work of torch's** (most) | fused | torch plans, s | echo, s"
    )
    return table(columns, [cells(name) for name, fused in models if not fused])


def steps_at_equal_peaks(rows: Sequence[Row]) -> list[float]:
    """The step of echo over the fastest of torch's, at each peak of torch's budgets: measured, within `SAME` of it."""
    torchs, echos = ([row for row in rows if row["by"] == by] for by in ("torch", "echo"))
    found = []
    for peak in sorted({row["peak_bytes"] for row in torchs if row["ratio"] < 1}):
        ours = [row["step_seconds"] for row in echos if row["peak_bytes"] <= SAME * peak]
        best = min(row["step_seconds"] for row in torchs if row["peak_bytes"] <= peak)
        found += [min(ours) / best] if ours else []
    return found


def _cell(row: Row | None) -> str:
    return "-" if row is None else f"{row['peak_bytes'] / 1e6:.1f} MB, {1e3 * row['step_seconds']:.0f} ms"


def measured_table(result: Mapping[str, Any]) -> str:
    """A line for each model: peaks and steps in eager mode, compiled, at torch's least, and by echo there."""
    models = by_model(result["rows"], "device")

    def cells(key: tuple[Any, ...]) -> list[str]:
        rows = models[key]
        eager, stock = rows[0], next(row for row in rows if row.get("ratio") == 1)
        least = min((row for row in rows if row["by"] == "torch"), key=lambda row: row["peak_bytes"])
        echos = [row for row in rows if row["by"] == "echo"]
        there = min((row for row in echos if row["peak_bytes"] <= SAME * least["peak_bytes"]),
                    key=lambda row: row["step_seconds"], default=None)  # fmt: skip
        ratios = steps_at_equal_peaks(rows)
        steps = f"{statistics.median(ratios):.2f} ({max(ratios):.2f})" if ratios else "-"
        off = [100 * (row["predicted_bytes"] / row["peak_bytes"] - 1) for row in echos]
        measured = map(_cell, (eager, stock, least, there))
        return [key[0], *measured, steps, f"{min(off):+.1f} to {max(off):+.1f} %"]

    columns = (
        "model | eager | torch.compile | torch's least | **echo there** | **echo's step over torch's** (most) "
        "| predicted peak"
    )
    return table(columns, map(cells, models))


def converted_table(result: Mapping[str, Any]) -> str:
    """A line for each converted model: MXNet without and with echo, and torch's settings; echo's against MXNet's."""
    models = by_model(result["rows"], "threads")

    def cells(key: tuple[Any, ...]) -> list[str]:
        rows = models[key]
        mxnet, planned, eager, echo = (
            next(row for row in rows if row["by"] == by) for by in ("mxnet, stock", "mxnet, echo", "eager", "echo")
        )
        share = f"{echo['peak_bytes'] / planned['peak_bytes']:.2f}"
        faster = f"{mxnet['step_seconds'] / echo['step_seconds']:.1f}x"
        off = f"{100 * (echo['predicted_bytes'] / echo['peak_bytes'] - 1):+.1f} %"
        return [key[0], str(key[1]), *map(_cell, (mxnet, planned, eager, echo)), off, share, faster]

    columns = (
        "model | threads | MXNet | MXNet with echo | eager | **echo** | predicted peak "
        "| **peak over MXNet's with echo** | **faster than MXNet**"
    )
    return table(columns, map(cells, models))


TABLES = {
    "torch_frontier": (frontier_table, "torch_frontier", "python -m benchmarks.torch_frontier"),
    "torch_measured": (measured_table, "torch_measured", "python -m benchmarks.torch_measured"),
    "torch_converted": (converted_table, "torch_converted", "python -m benchmarks.torch_converted"),
}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws recomputation over the peak, a panel for each model, with fused pointwise operators."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = by_model(row for row in rows if row["fused"])
    figure, panels = pyplot.subplots(3, 4, figsize=(12, 8), squeeze=False)
    for axes, ((name,), own) in zip(panels.flat, models.items()):
        for by, style in (("torch, flops", "o"), ("torch, measured", "x"), ("echo", ".-")):
            points = sorted((row["peak_bytes"] / row["stock_bytes"], row["overhead"]) for row in own
                            if row["by"] == by and "overhead" in row)  # fmt: skip
            axes.plot([100 * x for x, _ in points], [100 * y for _, y in points], style, label=by)
        axes.set_title(name)
        axes.set_ylim(-1, 45)
    for axes in panels.flat[len(models) :]:
        axes.axis("off")
    panels.flat[-1].legend(*panels.flat[0].get_legend_handles_labels(), loc="center")
    figure.supxlabel("peak, % of that without recomputation")
    figure.supylabel("recomputation, % of the step")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    draw(load("torch_frontier")["rows"], PICTURE)
    print("written:", PICTURE.name)
