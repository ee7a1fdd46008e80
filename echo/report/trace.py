"""A profile as a trace for https://ui.perfetto.dev and chrome://tracing: operators in their order, bytes as counters.

The format is Chrome's "Trace Event Format" as JSON. Nothing is timed: a step of the graph is a microsecond wide.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterator, Mapping

from echo.report.profile import Profile
from echo.report.usage import Usage
from echo.system.terminal import MB

_STEP = 1  # microseconds that an operator is wide
_FORWARD, _BACKWARD = 1, 2  # the rows of the operators
_MOST_LARGEST = 5


def save(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes the trace as JSON; each graph of the profile is a process of it."""
    text = json.dumps(trace(profile), separators=(",", ":"), allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def trace(profile: Profile) -> dict[str, Any]:
    """The trace as a JSON value."""
    events: list[Mapping[str, Any]] = []
    for number, (name, usage) in enumerate(profile.usages.items(), 1):
        events += _names(number, name)
        events += _operators(number, usage)
        events += _counters(number, usage)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": dict(profile.versions)}


def _names(process: int, name: str) -> Iterator[Mapping[str, Any]]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"{name} graph"}}
    for row, text in ((_FORWARD, "forward"), (_BACKWARD, "backward")):
        yield {"ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": {"name": text}}


def _operators(process: int, usage: Usage) -> Iterator[Mapping[str, Any]]:
    written: dict[int, list[Any]] = {}
    for tensor in usage.passing:
        written.setdefault(tensor.first, []).append(tensor)
    for step, name in enumerate(usage.steps):
        arrays = sorted(written.get(step, ()), key=lambda tensor: -tensor.bytes)[:_MOST_LARGEST]
        row = _FORWARD if step < usage.forward_steps else _BACKWARD
        held = {array.name: f"{array.kind}, {array.bytes} bytes, until step {array.last}" for array in arrays}
        yield {"ph": "X", "pid": process, "tid": row, "ts": step * _STEP, "dur": _STEP, "name": name, "args": held}


def _counters(process: int, usage: Usage) -> Iterator[Mapping[str, Any]]:
    """MB alive by kind, at each step at which they change."""
    changes: dict[int, dict[str, int]] = {}
    for tensor in usage.passing:
        for step, size in ((tensor.first, tensor.bytes), (tensor.last + 1, -tensor.bytes)):
            kinds = changes.setdefault(step, {})
            kinds[tensor.kind] = kinds.get(tensor.kind, 0) + size
    kinds = dict.fromkeys(sorted({tensor.kind for tensor in usage.passing}), 0)
    for step in sorted(changes):
        for kind, size in changes[step].items():
            kinds[kind] += size
        megabytes = {kind: round(size / MB, 3) for kind, size in kinds.items()}
        yield {"ph": "C", "pid": process, "ts": step * _STEP, "name": "MB alive, planned by MXNet", "args": megabytes}
