"""How much memory does each workload need: without echo, with MXNet's mirror, by the paper's rule, and with echo?

    python -m benchmarks.paper.footprint [WORKLOAD ...]

Claims 1, 3, 4, 9 and 10 of the evaluation: the footprint of Echo (ISCA 2020) is 1.89 times smaller on average over NMT,
DeepSpeech2, Transformer and ResNet, 3.13 times at most; NMT by 2.03 to 2.08 ("tbd"), 1.73 ("groundhog") and 2.41 times
("best"); ResNet-152 falls below 0.6; mirroring raises ResNet-50. Bytes are planned ones, exact, and those of all that
the executor holds (weights, gradients, inputs), as the papers' are of the whole device. Writes
results/paper_footprint.json after each workload: what is there already is not planned again, but with --anew.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

import echo
from benchmarks.models import Model
from benchmarks.paper.workloads import WORKLOADS
from benchmarks.record import known_rows, save
from echo.errors import BudgetError

NAME = "paper_footprint"
#: What the papers report: times by which the memory of the whole device falls.
PUBLISHED = {"nmt_tbd": 2.05, "nmt_groundhog": 1.73, "nmt_best": 2.41}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "unfused": {"fuse": False},
    "bits": {"fuse": False, "max_overhead": 0.15},
    "echo": {"policy": "echo", "fuse": False, "max_overhead": None},
    "budget_75": {"memory_budget": 0.75},
    "budget_50": {"memory_budget": 0.50},
    "budget_35": {"memory_budget": 0.35},
}


def measure(model: Model) -> dict[str, Any]:
    """Plans one workload every way."""
    row: dict[str, Any] = {"workload": model.name}
    profile = echo.profile(model.symbol, ("mirror",), policy="none", fuse=False, **model.shapes)
    row["stock"], row["mirror"] = (_bytes(profile.usages[name]) for name in ("stock", "mirror"))
    for name, options in VARIANTS.items():
        started = time.perf_counter()
        try:
            plan = echo.plan(model.symbol, max_planning=None, **options, **model.shapes)
        except BudgetError as error:
            row[name] = {"reachable": error.reachable}
            print(f"{model.name}, {name}: {error}", flush=True)
            continue
        row[name] = {**_bytes(plan.after), "time": plan.time_ratio, "overhead": plan.overhead,
                     "seconds": time.perf_counter() - started}  # fmt: skip
        print(f"{model.name}, {name}: {plan.summary()}, planned in {row[name]['seconds']:.1f} s", flush=True)
    return row


def _bytes(held: Any) -> dict[str, int]:
    return {"planned": held.planned, "total": held.total}


def main() -> None:
    """Measures the workloads named on the command line, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--anew", action="store_true", help="plan again what is in the results already")
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    arguments = parser.parse_args()
    rows = {row["workload"]: row for row in known_rows(NAME)}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ECHO_CACHE_DIR"] = folder  # no plan of an earlier run
        for name in arguments.workloads:
            if arguments.anew or name not in rows:
                rows[name] = measure(WORKLOADS[name]())
                save(NAME, [rows[each] for each in WORKLOADS if each in rows])
    print("written:", save(NAME, [rows[each] for each in WORKLOADS if each in rows]).name)


if __name__ == "__main__":
    main()
