"""Sums of recordings side by side, as a table."""

from __future__ import annotations

from typing import Any, Mapping

from rich.table import Table

from echo.system.terminal import text_of

_HEADINGS = {"run": "recorded", "off": "without echo", "on": "with echo"}
_MB = 10**6
_FIGURES = {  # name: words, what it is divided by, decimals
    "ms_a_step": ("ms a step (median)", 1, 1),
    "samples_a_second": ("samples a second", 1, 1),
    "process": ("peak of the process, MB", _MB, 0),
    "predicted_process": ("the same, predicted by echo, MB", _MB, 0),
    "storage": ("peak of MXNet's storage, MB", _MB, 1),
    "device": ("memory of the GPUs, MB", _MB, 0),
    "gpu_joules_a_sample": ("GPU energy, J a sample", 1, 3),
    "gpu_watts": ("GPU power, W", 1, 1),
    "cpu_joules_a_sample": ("CPU energy, J a sample", 1, 3),
    "cpu_watts": ("CPU power, W", 1, 1),
    "steps": ("steps measured", 1, 0),
    "steps_left_out": ("steps left out (warm-up)", 1, 0),
}
_COUNTS = ("steps", "steps_left_out")


def render(sums: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each figure that some recording has; of two recordings, also how much the second changes the first."""
    table = Table("", title_justify="left")
    for name in sums:
        table.add_column(_HEADINGS.get(name, name), justify="right")
    if len(sums) == 2:
        table.add_column("change", justify="right")
    for figure, (words, unit, decimals) in _FIGURES.items():
        values = [figures.get(figure) for figures in sums.values()]
        if any(value is not None for value in values):
            cells = ["-" if value is None else f"{value / unit:,.{decimals}f}" for value in values]
            table.add_row(words, *cells, *([] if len(sums) != 2 else [_change(figure, *values)]))
    return text_of([table], 100)


def _change(figure: str, first: float | None, second: float | None) -> str:
    if figure in _COUNTS or first is None or second is None or not first:
        return ""
    return f"{100 * (second / first - 1):+.0f} %"
