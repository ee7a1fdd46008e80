"""Sums up the rows of a recording: time, throughput, memory and energy, without the steps of the warm-up."""

from __future__ import annotations

import statistics
from typing import Any, Callable, Sequence

from echo.recording.rows import Row

FORMAT = "echo-recording-2"


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures by name, None where nothing was measured.

    ``steps``, ``samples`` and ``seconds`` are sums; ``ms_a_step`` and ``samples_a_second`` are medians of the windows,
    which a pause does not move. Bytes are the most of all rows. Joules are those a sample, watts the mean.
    """
    counted = [row for row in rows if not row.warmup]
    samples, seconds = sum(row.samples for row in counted), sum(row.seconds for row in counted)
    gpu, cpu = _sum(counted, lambda row: row.gpu_joules), _sum(counted, lambda row: row.cpu_joules)
    return {
        "steps": sum(row.steps for row in counted),
        "samples": samples,
        "seconds": seconds,
        "ms_a_step": statistics.median(row.ms_a_step for row in counted) if counted else None,
        "samples_a_second": statistics.median(row.samples_a_second for row in counted) if counted else None,
        "process": _most(rows, lambda row: row.process),
        "storage": _most(rows, lambda row: row.storage),
        "device": _most(rows, lambda row: row.device),
        "gpu_joules_a_sample": _ratio(gpu, samples),
        "cpu_joules_a_sample": _ratio(cpu, samples),
        "gpu_watts": _ratio(gpu, seconds),
        "cpu_watts": _ratio(cpu, seconds),
        "steps_left_out": sum(row.steps for row in rows if row.warmup),
    }


def _sum(rows: Sequence[Row], value: Callable[[Row], float | None]) -> float | None:
    values = [read for read in map(value, rows) if read is not None]
    return sum(values) if values and len(values) == len(rows) else None


def _most(rows: Sequence[Row], value: Callable[[Row], int | None]) -> int | None:
    return max((read for read in map(value, rows) if read is not None), default=None)


def _ratio(one: float | None, other: float) -> float | None:
    return one / other if one is not None and other else None
