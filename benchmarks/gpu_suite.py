"""What `gpu_check.py` runs: the sections in their order, and what they write."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import time
import traceback
from pathlib import Path
from typing import Any, Iterable, Iterator

import numpy as np

from benchmarks.gpu_cases import cases_of, check
from benchmarks.gpu_device import Device
from benchmarks.gpu_library import build_library, using_library
from benchmarks.gpu_routes import route_rows
from benchmarks.gpu_timing import (
    Clock,
    Row,
    Sizes,
    attention_rows,
    compiled_rows,
    layer_rows,
    layout_rows,
    memory_rows,
)
from benchmarks.record import RESULTS, _commit, _processor
from echo.kernels.library import ADD, WRITE

ROOT = Path(__file__).resolve().parents[1]
# parts of the seconds that are left when the correctness is known
SHARES = {"memory": 0.15, "attention": 0.1, "layer": 0.4, "layout": 0.1, "compiled": 0.25}


def check_all(device: Any, seed: int, clock: Clock, scale: int = 3) -> list[Row]:
    """Every kernel and its gradient, written and added, both types: their worst errors, as parts of what is allowed.

    A row with "failed" names the case and says what is wrong.
    """
    worst: dict[tuple[str, str], float] = {}
    failures: list[Row] = []
    cases = [(case, dtype) for case in cases_of(scale) for dtype in ("float32", "float16")]
    for number, (case, dtype) in enumerate(clock.take(cases)):
        generator = np.random.default_rng([seed, number])
        turn = number % 2
        try:
            error = check(case, dtype, device, generator, lambda i, turn=turn: (WRITE, ADD)[(i + turn) % 2])
        except Exception as failure:
            text = f"{case}, {dtype}, seed {seed}, number {number}: {type(failure).__name__}: {failure}"
            failures.append({"section": "correctness", "failed": text})
            continue
        worst[case.kernel, dtype] = max(error, worst.get((case.kernel, dtype), 0.0))
    return failures + [
        {"section": "correctness", "kernel": kernel, "dtype": dtype, "worst_error_of_allowed": error}
        for (kernel, dtype), error in worst.items()
    ]


def circumstances(device: Any) -> Row:
    """The head of the results, as `benchmarks.record` writes it, without MXNet and with the GPU."""
    machine = {"processor": _processor(), "cores": len(os.sched_getaffinity(0)), "system": platform.system()}
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": device.torch.__version__}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": {**machine, **device.describe()},
        "versions": versions,
    }


def collect(title: str, rows: Iterable[Row], clock: Clock) -> list[Row]:
    """The rows of a section, printed as they come. What goes wrong ends the section, and is its last row."""
    print(f"== {title} (up to {clock.seconds:.0f} s)", flush=True)
    found: list[Row] = []
    for row in _until_failure(title, rows):
        found.append(row)
        values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
        print("  ".join(f"{name} {value}" for name, value in values.items() if name != "section"), flush=True)
    if clock.left_out:
        print(f"left out for want of time: {clock.left_out}", flush=True)
        found.append({"section": title, "left_out": clock.left_out})
    return found


def _until_failure(title: str, rows: Iterable[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except Exception:  # the other sections are worth their time all the same
        yield {"section": title, "failed": traceback.format_exc()}


def run(device: Any, folder: Path, seconds: float, seed: int, sizes: Sizes, results: Path, scale: int = 3) -> Path:
    """All sections, with a library built into a folder; returns the path of the JSON beside which the PNG lies."""
    ends = time.monotonic() + seconds
    print(f"seed {seed}; building the kernels' library", flush=True)
    fused = build_library(folder / "fused")
    step_by_step = build_library(folder / "step_by_step", "-DECHO_CUDA_STEP_BY_STEP")
    rows: list[Row] = []
    with using_library(step_by_step):
        clock = Clock(seconds / 8)
        rows += collect("correctness step by step", check_all(device, seed + 1, clock, scale), clock)
    with using_library(fused):
        clock = Clock(seconds / 8)
        rows += collect("correctness", check_all(device, seed, clock, scale), clock)
        clock = Clock(seconds / 8)
        rows += collect("routes", route_rows(device, sizes, clock, seed, step_by_step), clock)
        left = max(0.0, ends - time.monotonic())
        sections = {
            "memory": lambda clock: memory_rows(device, sizes, clock),
            "attention": lambda clock: attention_rows(device, sizes, clock),
            "layer": lambda clock: layer_rows(device, sizes, clock, step_by_step),
            "layout": lambda clock: layout_rows(device, sizes, clock),
            "compiled": lambda clock: compiled_rows(device, sizes, clock),
        }
        for title, section in sections.items():
            clock = Clock(left * SHARES[title])
            rows += collect(title, section(clock), clock)
            write(results, device, seed, rows)  # what is measured survives what comes after it
    from benchmarks.gpu_plot import plot

    plot(rows, results / "gpu_check.png")
    return results / "gpu_check.json"


def write(results: Path, device: Any, seed: int, rows: list[Row]) -> None:
    """The JSON."""
    results.mkdir(parents=True, exist_ok=True)
    value = {"benchmark": "gpu_check", **circumstances(device), "seed": seed, "rows": rows}
    (results / "gpu_check.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Runs all on the first CUDA device."""
    parser = argparse.ArgumentParser(description="checks and times the CUDA kernels")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="of the random inputs")
    parser.add_argument("--seconds", type=float, default=450, help="for all together, compiling included")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for gpu_check.json and gpu_check.png")
    options = parser.parse_args()
    device = Device()
    if not device.torch.cuda.is_available():
        print("error: torch finds no CUDA device")
        return 1
    print(device.describe())
    made = run(device, ROOT / "build" / "gpu", options.seconds, options.seed, Sizes(), options.results)
    print(f"wrote {made} and {made.with_suffix('.png')}")
    failed = [row["failed"] for row in json.loads(made.read_text(encoding="utf-8"))["rows"] if "failed" in row]
    print("\n".join(["", f"FAILED: {len(failed)}", *failed]) if failed else "all results are right")
    return 1 if failed else 0
