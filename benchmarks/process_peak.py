"""How well is the peak of a training process predicted, and how much of the planned saving does a user see?

    python -m benchmarks.process_peak [TRAINING ...]

Each training runs in processes of its own, one after the other: without echo, and with ``ECHO=1``, which predicts both
peaks at its first step. The peak is Linux's VmHWM. Models of other projects are left out unless they are installed
(`make .projects/gluon_nlp/.installed` and so on). Writes results/process_peak.json.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import known_rows, named, save

_SECONDS = 400
TOLERANCE = 0.10
_STARTED = "import sys; from benchmarks.process_peak import child; child(sys.argv[1])"


def child(name: str) -> None:
    """Trains in this process, and prints what it held, and what was predicted where echo is on."""
    project, _, model = name.partition("/")
    if model:
        importlib.import_module(f"projects.{project}").load()  # its imports before mxnet come before mxnet
    from benchmarks.process_models import TRAININGS, predicted_by_plan

    TRAININGS[name]()
    import mxnet as mx

    mx.nd.waitall()
    result: dict[str, Any] = {"peak": _peak()}
    if os.environ["ECHO"] == "1":
        from echo.runtime.bind_plan import PLANNER
        from echo.runtime.peak_prediction import PEAK_PREDICTION

        found = PEAK_PREDICTION.found
        result.update(predicted=found and found.to_json(), graphs=PLANNER.summary.graphs)
        result["by_plan"] = predicted_by_plan(name)
    print(json.dumps(result))


def _peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def trained(name: str, echo: str, cache: str) -> dict[str, Any]:
    """The output of `child` in a process of its own.

    Raises:
        RuntimeError: it failed; with the last line that it wrote.
    """
    from projects.settings import ROOT, python_path

    project, _, model = name.partition("/")
    variables = {**os.environ, "ECHO": echo, "ECHO_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = python_path(project) if model else str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        place.mkdir()  # projects also write next to the current folder
        done = subprocess.run([sys.executable, "-c", _STARTED, name], capture_output=True, text=True, env=variables,
                              cwd=place, timeout=_SECONDS, check=False)  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{name}, ECHO={echo}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    value: dict[str, Any] = json.loads(lines[-1])
    return value


def measure(name: str) -> dict[str, Any]:
    """One row: peaks without echo and with it, seen and predicted, in bytes."""
    with tempfile.TemporaryDirectory() as cache:
        stock = trained(name, "0", cache)
        echo = trained(name, "1", cache)
    row = {"training": name, "seen": {"stock": stock["peak"], "echo": echo["peak"]}, "predicted": echo["predicted"]}
    row["by_plan"] = echo["by_plan"]
    print(words(row), flush=True)
    return row


def errors(row: dict[str, Any]) -> dict[str, float]:
    """By how much each prediction is off, as a part of what was seen."""
    if not row["predicted"]:
        return {}
    return {name: sum(row["predicted"][name].values()) / seen - 1 for name, seen in row["seen"].items()}


def words(row: dict[str, Any]) -> str:
    """A row in one line."""
    found = [
        f"{name} {row['seen'][name] / 1e6:.0f} MB ({100 * error:+.1f} %)" for name, error in errors(row).items()
    ] or [f"{name} {seen / 1e6:.0f} MB, not predicted" for name, seen in row["seen"].items()]
    return f"{row['training']}: {', '.join(found)}"


def main() -> None:
    """Measures the trainings named on the command line, all that can be run by default."""
    from benchmarks.process_models import PROJECTS, TRAININGS
    from projects.settings import PACKAGES

    missing = {project for project in PROJECTS if not (PACKAGES / project / ".installed").exists()}
    names = [name for name in named(__doc__, TRAININGS) if name.partition("/")[0] not in missing]
    rows = {row["training"]: row for row in known_rows("process_peak")}
    for name in names:
        try:
            rows[name] = measure(name)
        except RuntimeError as error:
            print(error, flush=True)
            continue
        save("process_peak", [rows[name] for name in TRAININGS if name in rows])
    found = [abs(error) for row in rows.values() for error in errors(row).values()]
    if found:
        within = sum(error <= TOLERANCE for error in found)
        print(f"{within} of {len(found)} peaks within {TOLERANCE:.0%}, the worst {max(found):.1%} off")


if __name__ == "__main__":
    main()
