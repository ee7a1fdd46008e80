"""The output of a training run of Sockeye: its log, its metrics, its files, and MXNet's memory counter."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from echo.system.terminal import MB, bytes_of

COUNTER = "Memory: cpu/0"
# These files, and these columns of the metrics, hold times; all else has to be the same in every run with one seed.
_CLOCK_FILES = frozenset({"log", "training_state/training.pkl"})
_CLOCKS = frozenset({"time-elapsed", "avg-sec-per-sent-val", "decode-walltime-val"})
_CHECKPOINT = re.compile(r"Checkpoint \[\d+\]\tUpdates=(\d+) .*Time-cost=([\d.]+) ")
_SIZE = r"([\d,.]+ (?:MB|kB|bytes))"
_PLANNED = re.compile(rf"echo: {_SIZE} -> {_SIZE} planned\b.*?([+-][\d.]+) % time.*?, (\d+) feature maps")
_PERPLEXITY = re.compile(r"[\w-]*perplexity=[\w.+-]+")


class Checkpoint(NamedTuple):
    """``updates`` since the start, and the seconds since the checkpoint before."""

    updates: int
    seconds: float


class Planned(NamedTuple):
    """Echo's line for one bucket: planned MB without echo and with it, and how a step's time changes, as predicted."""

    stock_mb: int
    mb: int
    change: float
    feature_maps: int


def checkpoints(log: str) -> list[Checkpoint]:
    """The checkpoints in the order of training."""
    return [Checkpoint(int(updates), float(seconds)) for updates, seconds in _CHECKPOINT.findall(log)]


def updates_per_second(log: str) -> list[float]:
    """One figure for each checkpoint: the updates since the one before over their seconds."""
    before, figures = 0, []
    for checkpoint in checkpoints(log):
        figures.append((checkpoint.updates - before) / checkpoint.seconds)
        before = checkpoint.updates
    return figures


def largest_plan(log: str) -> Planned:
    """Echo's line for the bucket that needs the most memory.

    Raises:
        ValueError: echo logged no plan.
    """
    found = [Planned(*(round(bytes_of(size) / MB) for size in (stock, planned)), float(percent) / 100, int(maps))
             for stock, planned, percent, maps in _PLANNED.findall(log)]  # fmt: skip
    if not found:
        raise ValueError("expected a line 'echo: N MB -> N MB planned' in the log, found none")
    return max(found)


def last_perplexity(log: str) -> float:
    """The last perplexity that the log tells of.

    Raises:
        ValueError: it tells of none.
    """
    found = _PERPLEXITY.findall(log)
    if not found:
        raise ValueError("expected a perplexity in the log, found none")
    return float(found[-1].partition("=")[2])


def counter_peak(trace: Mapping[str, Any]) -> int:
    """The most bytes that MXNet's storage ever held, from the trace that its profiler wrote.

    Raises:
        ValueError: the trace has no such counter.
    """
    values = [event["args"][COUNTER] for event in trace["traceEvents"] if event.get("name") == COUNTER]
    if not values:
        raise ValueError(f"expected the counter {COUNTER!r} in MXNet's trace, found none")
    return int(max(values))


def metrics_without_clocks(text: str) -> str:
    """Sockeye's metrics file without the columns that hold times."""
    rows = (line.split("\t") for line in text.splitlines())
    return "\n".join("\t".join(cell for cell in row if cell.partition("=")[0] not in _CLOCKS) for row in rows)


def fingerprint(log: str, model: Path) -> dict[str, str]:
    """All that must not depend on echo, by name: the perplexities in the log, the metrics, a digest of each file."""
    found = {"perplexities": " ".join(_PERPLEXITY.findall(log))}
    for path in sorted(path for path in model.rglob("*") if path.is_file()):
        name = path.relative_to(model).as_posix()
        if name in _CLOCK_FILES:
            continue
        if name == "metrics":
            found[name] = metrics_without_clocks(path.read_text(encoding="utf-8"))
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names under which two fingerprints differ, those that only one has included."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
