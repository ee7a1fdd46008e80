"""The sections of `gpu_check.py` in their order, and their output."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np

from benchmarks.gpu_cases import Case, cases_of, check
from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_device import Device
from benchmarks.gpu_energy import energy_rows
from benchmarks.gpu_layers import deepbench_gru_rows, deepbench_lstm_rows, flashrnn_rows, layer_rows
from benchmarks.gpu_layouts import layout_rows
from benchmarks.gpu_library import build_library, using_library
from benchmarks.gpu_parts import part_rows
from benchmarks.gpu_routes import route_rows
from benchmarks.gpu_sanitizer import sanitizer_rows
from benchmarks.gpu_scores import compiled_score_rows, loss_rows, score_rows
from benchmarks.gpu_sizes import Sizes
from benchmarks.gpu_timing import attention_rows, compiled_rows, memory_rows
from benchmarks.record import RESULTS, commit, processor
from tests.support.kernel_calls import ADD, WRITE

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Bench:
    """The settings of the steps: a device, sizes, a seed, both libraries, and the factor of batches in correctness."""

    device: Any
    sizes: Sizes
    seed: int
    fused: Path
    step_by_step: Path
    scale: int = 3


@dataclass(frozen=True)
class Step:
    """A section of the results, its share of the seconds that are left, and its rows."""

    name: str
    share: float
    rows: Callable[[Bench, Clock], Iterable[Row]]


# The most telling first: is it right, do both routes agree, how fast is a layer, and of what does its time consist.
STEPS = (
    Step("correctness", 50, lambda b, clock: check_all(b.device, b.seed, clock, b.scale)),
    Step("routes", 60, lambda b, clock: route_rows(b.device, b.sizes, clock, b.seed, b.step_by_step)),
    Step("layer", 60, lambda b, clock: layer_rows(b.device, b.sizes, clock, b.step_by_step)),
    Step("parts", 15, lambda b, clock: part_rows(b.device, b.sizes, clock, b.step_by_step)),
    Step("sanitizer", 45, lambda b, clock: sanitizer_rows(b.fused, clock)),
    Step("scores", 10, lambda b, clock: score_rows(b.device, b.sizes, clock)),
    Step("loss", 30, lambda b, clock: loss_rows(b.device, b.sizes, clock)),
    Step("attention", 15, lambda b, clock: attention_rows(b.device, b.sizes, clock)),
    Step("energy", 10, lambda b, clock: energy_rows(b.device, b.sizes, clock)),
    Step("memory", 25, lambda b, clock: memory_rows(b.device, b.sizes, clock)),
    Step("deepbench lstm", 30, lambda b, clock: deepbench_lstm_rows(b.device, b.sizes, clock)),
    Step("deepbench gru", 30, lambda b, clock: deepbench_gru_rows(b.device, b.sizes, clock)),
    Step("flashrnn", 20, lambda b, clock: flashrnn_rows(b.device, b.sizes, clock)),
    Step("layout", 10, lambda b, clock: layout_rows(b.device, b.sizes, clock)),
    Step("correctness step by step", 20, lambda b, clock: check_step_by_step(b, clock)),
    Step("compiled", 20, lambda b, clock: compiled_rows(b.device, b.sizes, clock)),
    Step("compiled scores", 15, lambda b, clock: compiled_score_rows(b.device, b.sizes, clock)),
)


def check_all(device: Any, seed: int, clock: Clock, scale: int = 3) -> list[Row]:
    """Every kernel and its gradient, written and added, both types: their worst errors, as parts of what is allowed.

    A row with "failed" names the case and says what is wrong.
    """
    worst: dict[tuple[str, str], float] = {}
    failures: list[Row] = []
    cases = [(case, dtype) for case in cases_of(scale) for dtype in ("float32", "float16")]
    for number, case, dtype in clock.take(spread(cases), lambda item: f"{item[1]}, {item[2]}"):
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


def spread(cases: Sequence[tuple[Case, str]]) -> list[tuple[int, Case, str]]:
    """The cases with their numbers; one of each kernel and type first, so that want of time leaves none out."""
    numbered = [(number, case, dtype) for number, (case, dtype) in enumerate(cases)]
    first = {(case.kernel, dtype): number for number, case, dtype in reversed(numbered) if min(case.dims.values())}
    return sorted(numbered, key=lambda item: first.get((item[1].kernel, item[2])) != item[0])


def check_step_by_step(bench: Bench, clock: Clock) -> list[Row]:
    """`check_all` by the library without grid barrier."""
    with using_library(bench.step_by_step):
        rows = check_all(bench.device, bench.seed + 1, clock, bench.scale)
    return [{**row, "section": "correctness step by step"} for row in rows]


def circumstances(device: Any) -> Row:
    """The head of the results, as `benchmarks.record` writes it, without MXNet and with the GPU."""
    machine = {"processor": processor(), "cores": len(os.sched_getaffinity(0)), "system": platform.system()}
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": device.torch.__version__}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": {**machine, **device.describe()},
        "versions": versions,
    }


def collect(step: Step, bench: Bench, clock: Clock) -> list[Row]:
    """The rows of a step, printed as they come, and last its seconds and what it left out.

    What goes wrong ends the step, and is a row of it.
    """
    print(f"== {step.name} (up to {clock.seconds:.0f} s)", flush=True)
    started = clock.now()
    found: list[Row] = []
    for row in _until_failure(step, bench, clock):
        found.append(row)
        values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
        print("  ".join(f"{name} {value}" for name, value in values.items() if name != "section"), flush=True)
    if clock.left_out:
        print(f"left out for want of time: {', '.join(clock.left_out)}", flush=True)
    end = {"section": step.name, "seconds": clock.now() - started, "allowed": clock.seconds}
    return [*found, {**end, "left_out": clock.left_out}]


def _until_failure(step: Step, bench: Bench, clock: Clock) -> Iterator[Row]:
    try:
        yield from step.rows(bench, clock)
    except Exception:  # the other steps are worth their time all the same
        yield {"section": step.name, "failed": traceback.format_exc()}


def run(
    bench: Bench,
    seconds: float,
    results: Path,
    steps: Sequence[Step] = STEPS,
    now: Callable[[], float] = time.monotonic,
) -> Path:
    """All steps, within these seconds; returns the path of the JSON, which is written again after each step.

    A step gets its share of what is left, so that later steps get what one does not need.
    """
    ends, rows = now() + seconds, list[Row]()
    with using_library(bench.fused):
        for number, step in enumerate(steps):
            shares = sum(other.share for other in steps[number:])
            clock = Clock(max(0.0, ends - now()) * step.share / shares, now)
            rows += collect(step, bench, clock)
            write(results, bench.device, bench.seed, rows)  # results survive later steps
    return results / "gpu_check.json"


def built(folder: Path) -> tuple[Path, Path]:
    """The library, and one without grid barrier."""
    print("building the kernels' library", flush=True)
    return build_library(folder / "fused"), build_library(folder / "step_by_step", "-DECHO_CUDA_STEP_BY_STEP")


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
    started = time.monotonic()
    bench = Bench(device, Sizes(), options.seed, *built(ROOT / "build" / "gpu"))
    print(f"seed {options.seed}")
    made = run(bench, options.seconds - (time.monotonic() - started), options.results)
    rows = json.loads(made.read_text(encoding="utf-8"))["rows"]
    from benchmarks.gpu_plot import plot

    plot(rows, made.with_suffix(".png"))
    print(f"wrote {made} and {made.with_suffix('.png')}")
    for row in rows:
        if row.get("left_out"):
            print(f"left out of {row['section']}: {len(row['left_out'])}")
    failed = [row["failed"] for row in rows if "failed" in row]
    print("\n".join(["", f"FAILED: {len(failed)}", *failed]) if failed else "all results are right")
    return 1 if failed else 0
