"""Runs the evaluation: all claims that need no GPU, in half an hour, or a part of them in one minute.

    python -m benchmarks.paper [--fresh | --quick]

What the results have already is not planned again, but with --fresh; then the tables and the picture of docs/paper.md
are written. Where a figure takes more bytes than the committed one (`benchmarks.paper.figures.regressions`), or a
workload more than stock, it is named and the exit status is 1. With --quick some workloads are planned, at their full
sizes, in the ways that hang least on how fast this machine is; they are held against the committed results, and nothing
is written.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import tables
from benchmarks.paper import breakdown, footprint, largest, pictures, sweeps
from benchmarks.paper.figures import compared, faults, regressions
from benchmarks.paper.planning import no_plans_on_disk
from benchmarks.record import committed, load, parser

QUICK = ("nmt_tbd", "transformer", "resnet50_v2", "lm_650")
QUICK_WAYS = ("stock", "mirror", "unbounded", "unfused_unbounded", "echo")
#: The function that writes each file of results, in the order of a run.
ALL: dict[str, Callable[..., Sequence[Any]]] = {
    footprint.NAME: footprint.run,
    breakdown.NAME: breakdown.run,
    sweeps.NAME: sweeps.run,
    largest.NAME: largest.run,
}
#: The scripts that measure seconds, on one thread each, in a process of its own.
TIMED = ("steps", "perplexity")


def quick() -> list[str]:
    """Plans some workloads, and says what got worse."""
    before = committed(footprint.NAME)["rows"]
    found = footprint.run(QUICK, kept=False, ways=QUICK_WAYS, at_memonger=False)
    count, wanted = compared(found, before), len(QUICK) * len(QUICK_WAYS)
    print(f"{count} figures held against the committed ones", flush=True)
    missing = [f"{wanted - count} of {wanted} figures are not committed"] if count < wanted else []
    return [*missing, *regressions(found, before)]


def timed(script: str, fresh: bool) -> None:
    """Runs one of the scripts in `TIMED`."""
    subprocess.run([sys.executable, "-m", f"benchmarks.paper.{script}", *(["--fresh"] if fresh else [])], check=True)


def everything(fresh: bool) -> list[str]:
    """Plans all that is not there, writes tables and the picture, and says what got worse or does not hold."""
    found: list[str] = []
    for name, run in ALL.items():
        print(f"== {name}", flush=True)
        found += regressions(run(fresh=fresh), committed(name)["rows"])
    for script in TIMED:
        print(f"== {script}", flush=True)
        timed(script, fresh)
    pictures.draw()
    tables.main()
    return found + [line for row in load(footprint.NAME)["rows"] for line in faults(row)]


def main() -> int:
    """The exit status: 1 where something got worse."""
    options = parser(__doc__)
    which = options.add_mutually_exclusive_group()
    which.add_argument("--fresh", action="store_true", help="plan again what is in the results already")
    which.add_argument("--quick", action="store_true", help="plan some workloads only, and write nothing")
    arguments = options.parse_args()
    with no_plans_on_disk():
        worse = quick() if arguments.quick else everything(arguments.fresh)
    for line in worse:
        print(f"WORSE: {line}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
