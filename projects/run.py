"""One training in a process of its own: its results, or its end by an error."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from benchmarks.sockeye_log import counter_peak
from echo.native.counter import preloaded
from echo.system.terminal import MB, bytes_of
from projects.settings import OUT, environment

SECONDS = 900  # a training that takes longer hangs
_ECHO = re.compile(r"^.*?\becho: (.*)$", re.MULTILINE)
_SIZE = r"([\d,.]+ (?:MB|kB|bytes))"
_PLANNED = re.compile(rf"^{_SIZE} (?:and {_SIZE} .*)?-> {_SIZE} planned")
_NEWS = ("WARNING", "without a plan", "not active", "as it is", "Error")


@dataclass(frozen=True)
class Run:
    """A training that ended: its arrays, figures, and what echo said; ``failure`` is empty where it ended well."""

    failure: str = ""
    arrays: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    processor_seconds: float = 0.0
    rss_mb: float = 0.0
    counter_mb: float = 0.0
    allocated_mb: float = 0.0
    planned_mb: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()


def train(project: str, model: str, steps: int, setting: str, cache: Path) -> Run:
    """Trains a model in ``out/projects/PROJECT/MODEL/SETTING``, where its log and arrays stay."""
    folder = OUT / project / model / setting
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "projects.child", project, model, str(steps)]
    with open(folder / "log", "w", encoding="utf-8") as log:
        try:
            variables = {**environment(project, setting, cache), **preloaded()}
            done = subprocess.run(command, cwd=folder, env=variables, stdout=log,
                                  stderr=subprocess.STDOUT, timeout=SECONDS, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return Run(failure=f"took more than {SECONDS} s")
    text = (folder / "log").read_text(encoding="utf-8", errors="replace")
    if done.returncode:
        return Run(failure=_death(done.returncode, text), warnings=_warnings(text))
    return _read(folder, text)


def _read(folder: Path, log: str) -> Run:
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    with np.load(folder / "result.npz", allow_pickle=False) as file:
        arrays = dict(file)
    trace = folder / "profile.json"
    counter = counter_peak(json.loads(trace.read_text(encoding="utf-8")))
    trace.unlink()  # tens of megabytes each
    return Run(arrays=arrays, counter_mb=counter / 1e6, planned_mb=planned(log), warnings=_warnings(log), **figures)


def planned(log: str) -> tuple[int, int] | None:
    """Planned MB of the largest graph, without echo and with it; None where echo planned nothing."""
    found = (_PLANNED.match(line) for line in _ECHO.findall(log))
    return max(((round(bytes_of(one[1]) / MB), round(bytes_of(one[3]) / MB)) for one in found if one), default=None)


def _warnings(log: str) -> tuple[str, ...]:
    lines = dict.fromkeys(line.strip() for line in _ECHO.findall(log) if any(word in line for word in _NEWS))
    return tuple(lines)


def _death(status: int, log: str) -> str:
    """Of a signal the innermost functions, of an exception the last line."""
    if status < 0:
        places = re.findall(r'File "(?:.*/)?([^/"]+/[^/"]+)", line (\d+) in (\w+)', log)
        innermost = (f"{file}:{line} {name}" for file, line, name in places[:3])
        return f"{signal.Signals(-status).name} in {', '.join(innermost)}"
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no output"
