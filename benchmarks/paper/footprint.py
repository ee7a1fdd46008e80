"""How much memory does each workload need: without echo, with MXNet's mirror, by the paper's rule, and with echo?

    python -m benchmarks.paper.footprint [--fresh] [WORKLOAD ...]

Claims 1, 3, 4, 9 and 10 of the evaluation. Bytes are planned ones, exact, and those of all that the executor holds
(weights, gradients, inputs), as the papers' are of the whole device. Writes results/paper_footprint.json after each
workload: existing rows are planned again only with --fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from benchmarks.models import Model
from benchmarks.paper.planning import VARIANTS, Found, Results, fill, no_plans_on_disk, planned, way
from benchmarks.paper.workloads import WORKLOADS
from benchmarks.record import asked, parser

NAME = "paper_footprint"
#: memonger's memory is the least that it reaches; searches end within some thousandths of the least there is.
ABOUT = 1.01
AT_MEMONGER = "at_memonger"
WAYS = ("stock", "mirror", *VARIANTS, "memonger")


def run(workloads: Iterable[str] = tuple(WORKLOADS), fresh: bool = False, kept: bool = True,
        ways: Iterable[str] = WAYS, at_memonger: bool = True) -> list[Found]:  # fmt: skip
    """Plans each workload in each way; `at_memonger` also in the memory that memonger's rule needs, and 1 % more."""
    results = Results(NAME, fresh, kept)
    wanted = set(workloads)
    rows = [results.row(name in wanted, workload=name) for name in WORKLOADS]
    figures = [*ways, AT_MEMONGER] if at_memonger else list(ways)
    missing = [row for row in rows if row["workload"] in wanted and not row.keys() >= {*figures}]
    results.fill_side_by_side(missing, partial(_filled, figures))
    return [row for row in rows if row["workload"] in wanted]


def _filled(figures: Sequence[str], row: Found) -> Found:
    """The row with these figures."""
    model = WORKLOADS[row["workload"]]()
    for figure in figures:
        fill(NAME, row, figure, partial(_figure, model, row, figure))
    return row


def _figure(model: Model, row: Found, figure: str) -> Found:
    return _in(model, row["memonger"]) if figure == AT_MEMONGER else way(model, figure)


def _in(model: Model, found: Found) -> Found:
    """The fastest plan without fused operators in about the memory of this one."""
    return planned(model, fuse=False, max_overhead=None, memory_budget=int(ABOUT * found["total"]))


def main() -> None:
    """Measures the workloads named on the command line, all by default."""
    options = parser(__doc__, *WORKLOADS)
    options.add_argument("--fresh", action="store_true", help="plan again what is in the results already")
    arguments = options.parse_args()
    with no_plans_on_disk():
        run(asked(arguments.names, WORKLOADS), arguments.fresh)


if __name__ == "__main__":
    main()
