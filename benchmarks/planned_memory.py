"""How little memory does each model need, at which bound on time, and how long does planning take?

    python -m benchmarks.planned_memory [MODEL ...]

Planned MB are MXNet's own and exact. Writes results/planned_memory.json.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import echo
from benchmarks.models import MODELS, Model
from benchmarks.record import known_rows, named, save

BOUNDS: dict[str, float | str | None] = {"0.05": 0.05, "0.10": "auto", "0.25": 0.25, "none": None}
# planned MB that the project set itself for no bound on time, as shares of stock
BARS = {
    "nmt": 132 / 334, "nmt_large": 740 / 2261, "lm": 177 / 216, "resnet50_v1": 1890 / 2772,
    "resnet50_v2": 1500 / 2622, "densenet121": 1580 / 4165, "inception_v3": 1890 / 3176,
}  # fmt: skip


def measure(model: Model) -> dict[str, Any]:
    """Plans one model under every bound."""
    row: dict[str, Any] = {"model": model.name, "bar": BARS[model.name]}
    for name, bound in BOUNDS.items():
        started = time.perf_counter()
        plan = echo.plan(model.symbol, max_overhead=bound, **model.shapes)
        row["stock_mb"] = plan.before.planned / 1e6
        row[name] = {
            "mb": plan.after.planned / 1e6,
            "predicted_overhead": plan.overhead,
            "match_range": plan.match_range,
            "feature_maps": len(plan.recomputed),
            "seconds_to_plan": time.perf_counter() - started,
        }
        took = row[name]["seconds_to_plan"]
        print(f"{model.name}, bound {name}: {plan.summary()}, planned in {took:.1f} s", flush=True)
    share = row["none"]["mb"] / row["stock_mb"]
    row["met"] = share <= row["bar"]
    print(f"{model.name}: {share:.3f} of stock, at most {row['bar']:.3f} wanted: {'met' if row['met'] else 'MISSED'}")
    return row


def main() -> None:
    """Measures the models named on the command line, all by default."""
    names = named(__doc__, MODELS)
    rows = [row for row in known_rows("planned_memory") if row["model"] not in names]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ECHO_CACHE_DIR"] = folder  # no plan of an earlier run
        rows += [measure(MODELS[name]()) for name in names]
    print("written:", save("planned_memory", rows).name)


if __name__ == "__main__":
    main()
