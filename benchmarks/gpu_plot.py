"""The results of the GPU checks as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Row = dict[str, Any]


def plot(rows: list[Row], path: Path) -> None:
    """Kernels against a copy and torch on the left, a layer's training step against cuDNN on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 6))
    _plot_memory(left, [row for row in rows if row["section"] == "memory" and "kernel" in row])
    _plot_layers(right, [row for row in rows if row["section"] == "layer" and row.get("dtype") == "float32"])
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _plot_memory(axes: Any, rows: list[Row]) -> None:
    names = [f"{row['kernel']} {row['dtype'][5:]}" for row in rows]
    for offset, key, label in ((-0.2, "forward_of_copy", "forward"), (0.2, "gradient_of_copy", "gradient")):
        axes.barh([i + offset for i in range(len(rows))], [row[key] for row in rows], 0.4, label=label)
    axes.set_yticks(range(len(rows)), names)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xlabel("bandwidth, as a part of that of a copy")
    axes.invert_yaxis()
    if rows:
        axes.legend()


def _plot_layers(axes: Any, rows: list[Row]) -> None:
    """Times as multiples of cuDNN's, over the batch size; a line for each number of units."""
    longest = max((row["T"] for row in rows), default=0)
    timed = [row for row in rows if row["T"] == longest and isinstance(row["cudnn_ms"], float)]
    for number, hidden in enumerate(sorted({row["H"] for row in timed})):
        line = sorted((row for row in timed if row["H"] == hidden), key=lambda row: int(row["B"]))
        batches = [row["B"] for row in line]
        for key, style in (("ours_ms", "o-"), ("step_by_step_ms", "x:"), ("unfused_ms", "s--")):
            values = [row[key] / row["cudnn_ms"] if isinstance(row[key], float) else float("nan") for row in line]
            axes.plot(batches, values, style, color=f"C{number}", label=f"H={hidden}" if key == "ours_ms" else None)
    axes.axhline(1, color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("batch")
    axes.set_ylabel(f"training step, T={longest}, float32: time / cuDNN's\n(dotted: step by step, dashed: unfused)")
    if timed:
        axes.legend()
