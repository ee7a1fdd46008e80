"""How much memory does each workload need: without echo, with MXNet's mirror, by the paper's rule, and with echo?

    python -m benchmarks.paper.footprint [--anew] [WORKLOAD ...]

Claims 1, 3, 4, 9 and 10 of the evaluation. Bytes are planned ones, exact, and those of all that the executor holds
(weights, gradients, inputs), as the papers' are of the whole device. Writes results/paper_footprint.json after each
figure: what is there already is not planned again, but with --anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks.models import Model
from benchmarks.paper.planning import VARIANTS, Found, Results, no_plans_on_disk, planned, way
from benchmarks.paper.workloads import WORKLOADS

NAME = "paper_footprint"
#: memonger's memory is the least that it reaches; searches end within some thousandths of the least there is.
ABOUT = 1.01
WAYS = ("stock", "mirror", *VARIANTS, "memonger")


def run(workloads: Iterable[str] = tuple(WORKLOADS), anew: bool = False, kept: bool = True,
        ways: Iterable[str] = WAYS, at_memonger: bool = True) -> list[Found]:  # fmt: skip
    """Plans each workload in each way; `at_memonger` also in the memory that memonger's rule needs, and 1 % more."""
    results = Results(NAME, anew, kept)
    asked = set(workloads)
    for name, build in WORKLOADS.items():
        row = results.row(name in asked, workload=name)
        if name not in asked or (all(figure in row for figure in ways) and ("at_memonger" in row or not at_memonger)):
            continue
        model = build()
        for one in ways:
            results.fill(row, one, partial(way, model, one))
        if at_memonger:
            results.fill(row, "at_memonger", partial(_in, model, row["memonger"]))
    return [row for row in results.rows if row["workload"] in asked]


def _in(model: Model, found: Found) -> Any:
    """The fastest plan without fused operators in about the memory of this one."""
    return planned(model, fuse=False, max_overhead=None, memory_budget=int(ABOUT * found["total"]))


def main() -> None:
    """Measures the workloads named on the command line, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--anew", action="store_true", help="plan again what is in the results already")
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    arguments = parser.parse_args()
    with no_plans_on_disk():
        run(arguments.workloads, arguments.anew)


if __name__ == "__main__":
    main()
