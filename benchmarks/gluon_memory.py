"""How much memory do hybridized Gluon blocks need with echo, and what does it cost in time?

    python -m benchmarks.gluon_memory [CASE ...]

Memory: each configuration trains in a process of its own while MXNet's profiler counts every byte of its storage.
Time: two copies of a network, with and without echo, take steps in turn in one process. Writes
results/gluon_memory.json.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import apart, known_rows, named, save

STEPS, TIMED_STEPS = 3, 5
BOUNDS: dict[str, float | str | None] = {"0.10": "auto", "none": None}
FUSED_TOLERANCE = 2e-5  # README: of the largest element
# shares of stock at most wanted without a bound on time: stashed feature maps, storage counter
BARS = {
    "resnet50_v2 b16, static_alloc": (0.60, 0.88),
    "densenet121 b16, static_alloc": (0.42, 0.75),
    "LSTMCell 2x512 b64 + attention, 50 steps, static_alloc": (None, 0.50),
    "LSTMCell 2x512 b64 + attention, 50 steps": (None, 0.50),
}


def counted(case: str, bound: str | None) -> dict[str, Any]:
    """Trains some steps, with echo if there is a bound; peak of the storage counter in MB, losses, and the plan."""
    import mxnet as mx

    import echo
    from benchmarks.gluon_models import TRAININGS

    mx.random.seed(0)
    training = TRAININGS[case]()
    if bound is not None:
        echo.optimize(training.net, max_overhead=BOUNDS[bound])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        mx.profiler.set_config(profile_memory=True, filename=str(path))
        mx.profiler.set_state("run")
        losses = [training.step() for _ in range(STEPS)]
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        events = json.loads(path.read_text())["traceEvents"]
    counts = [max(event["args"].values()) for event in events if event["name"] == "Memory: cpu/0"]
    result: dict[str, Any] = {"counter_mb": max(counts) / 1e6, "losses": losses}
    if bound is not None:
        (plan,) = training.net._cached_op.plans.values()
        result.update(
            planned_mb=[plan.before.planned / 1e6, plan.after.planned / 1e6],
            stashed_mb=[sum(memory.layers.values()) / 1e6 for memory in (plan.before, plan.after)],
            static_mb=sum(plan.before.static.values()) / 1e6,
            predicted_overhead=plan.overhead,
            fused=len(plan.fused),
        )
    return result


def timed(case: str, bound: str) -> float:
    """Time of a step with echo as a multiple of the time without: the median over steps in turn."""
    import echo
    from benchmarks.gluon_models import TRAININGS

    stock, optimized = TRAININGS[case](), TRAININGS[case]()
    echo.optimize(optimized.net, max_overhead=BOUNDS[bound])
    stock.step()
    optimized.step()
    ratios = []
    for _ in range(TIMED_STEPS):
        seconds = []
        for training in (stock, optimized):
            started = time.perf_counter()
            training.step()
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def measure(case: str) -> dict[str, Any]:
    """One row: without echo, and under each bound."""
    stock = apart("gluon_memory", "counted", case, None)
    row: dict[str, Any] = {"case": case, "stock_counter_mb": stock["counter_mb"]}
    for bound in BOUNDS:
        found = apart("gluon_memory", "counted", case, bound)
        if not _equal(found, stock):
            raise RuntimeError(f"{case}, bound {bound}: expected losses {stock['losses']}, got {found['losses']}")
        found["time"] = apart("gluon_memory", "timed", case, bound)
        row[bound] = found
        stashed, counter = _shares(row, bound)
        took = found["time"]
        print(f"{case}, bound {bound}: stashed {stashed:.2f}, counter {counter:.2f}, time {took:.2f}", flush=True)
    # memory that the plan does not know: layout copies of oneDNN, temporary space, loss and optimizer
    known = row["none"]["planned_mb"][0] + row["none"]["static_mb"]
    row["other_mb"] = [stock["counter_mb"] - known, row["none"]["counter_mb"] - known + _saved(row["none"])]
    wanted = BARS.get(case, (None, None))
    row["bars"] = wanted
    row["met"] = all(bar is None or share <= bar for share, bar in zip(_shares(row, "none"), wanted))
    print(f"{case}: bars {wanted} {'met' if row['met'] else 'MISSED'}", flush=True)
    return row


def _equal(found: dict[str, Any], stock: dict[str, Any]) -> bool:
    """Whether the losses are the same: to the bit, or as near as fused operators are."""
    bound = FUSED_TOLERANCE if found["fused"] else 0.0
    return all(abs(mine - its) <= bound * abs(its) for mine, its in zip(found["losses"], stock["losses"]))


def _saved(found: dict[str, Any]) -> float:
    before, after = found["planned_mb"]
    return float(before - after)


def _shares(row: dict[str, Any], bound: str) -> tuple[float, float]:
    before, after = row[bound]["stashed_mb"]
    return after / before, row[bound]["counter_mb"] / row["stock_counter_mb"]


def main() -> None:
    """Measures the cases named on the command line, all by default."""
    from benchmarks.gluon_models import TRAININGS

    names = named(__doc__, TRAININGS)
    rows = {row["case"]: row for row in known_rows("gluon_memory")}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ECHO_CACHE_DIR"] = folder
        rows.update({name: measure(name) for name in names})
    print("written:", save("gluon_memory", [rows[name] for name in TRAININGS if name in rows]).name)


if __name__ == "__main__":
    main()
