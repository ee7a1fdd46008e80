"""Shared by all scripts of the evaluation: one model planned in each way, and results that a run goes on with."""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import echo
from benchmarks.models import Model
from benchmarks.record import commit, known_rows, parser, save
from echo.errors import BudgetError
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.ir.ops import spec
from echo.plans.decisions import splits_of

Found = dict[str, Any]
#: Workloads that are planned at the same time, a processor each.
AT_A_TIME = 2
_OUT_OF_REACH = 1024  # bytes, so that a plan says the least that can be reached

#: The plans compared with stock MXNet, by name. In "light", no heavy operator runs twice; in "same_time", a step
#: may take as long as stock's. "bits" is the acceptance of the evaluation where every bit is kept; "echo" is the
#: published rule; plans without a bound on time depend least on the measured operators.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "light": {"heavy": "never"},
    "same_time": {"max_time": 1.0},
    "unfused": {"fuse": False},
    "bits": {"exact": True, "max_overhead": 0.15},
    "unbounded": {"max_overhead": None},
    "unfused_unbounded": {"fuse": False, "max_overhead": None},
    "echo": {"policy": "echo", "fuse": False, "max_overhead": None},
    "budget_75": {"memory_budget": 0.75},
    "budget_50": {"memory_budget": 0.50},
    "budget_35": {"memory_budget": 0.35},
}


def planned(model: Model, **options: Any) -> Found:
    """The bytes and the predicted time of one plan, or what is reachable where a budget is not.

    ``planned`` is MXNet's figure, ``total`` all that the executor holds (also weights, gradients, inputs, workspaces of
    fused operators), ``heavy`` the matrix products and convolutions that are recomputed.
    """
    started = time.perf_counter()
    try:
        plan = echo.plan(model.symbol, grad_req=model.grad_req(), max_planning=None, **options, **model.shapes)
    except BudgetError as error:
        return {"reachable": error.reachable}
    marks = [mark for mark in plan.marks if spec(mark.op).cost.heavy and PLAN_ATTRIBUTE in mark.attrs]
    return {
        **_bytes(plan.after),
        "overhead": plan.overhead,
        "time": plan.time_ratio,
        "heavy": sum(len(splits_of(mark)) or 1 for mark in marks),
        "seconds": round(time.perf_counter() - started, 1),
    }


def stock(model: Model) -> Found:
    """The bytes of MXNet's own graph."""
    plan = echo.plan(model.symbol, grad_req=model.grad_req(), policy="none", fuse=False, max_planning=None,
                     **model.shapes)  # fmt: skip
    return _bytes(plan.before)


def mirror(model: Model) -> Found:
    """The bytes with MXNet's own recomputation (``MXNET_BACKWARD_DO_MIRROR``)."""
    profile = echo.profile(
        model.symbol, compare=("mirror",), grad_req=model.grad_req(), policy="none", fuse=False, **model.shapes
    )
    return _bytes(profile.usages["mirror"])


def memonger(model: Model) -> Found:
    """The least memory of memonger's idea (Chen, 2016): checkpoints where few bytes cross, the rest is recomputed."""
    options: Found = {"policy": "sublinear", "fuse": False, "max_overhead": None}
    least = planned(model, memory_budget=_OUT_OF_REACH, **options)
    return planned(model, memory_budget=least["reachable"], **options)


def way(model: Model, name: str) -> Found:
    """One model in the way of this name: "stock", "mirror", "memonger", or one of `VARIANTS`."""
    ways: dict[str, Callable[[Model], Found]] = {"stock": stock, "mirror": mirror, "memonger": memonger}
    return ways[name](model) if name in ways else planned(model, **VARIANTS[name])


def _bytes(held: Any) -> Found:
    return {"planned": held.planned, "total": held.total}


def fill(name: str, row: Found, figure: str, measured: Callable[[], Any]) -> None:
    """Measures a figure that a row of the results of this name has not, and says it."""
    if figure not in row:
        row[figure] = measured()
        row["measured"] = [datetime.date.today().isoformat(), commit()]
        print(f"{name}, {_key(row)}, {figure}: {_text(row[figure])}", flush=True)


class Results:
    """The rows of one file of results, in the order of the run; each figure is saved as soon as it is there.

    Of rows that are filled side by side, each row is. ``measured`` in a row is the day of its last figure, and the
    commit.

    Figures that the file has already are not measured again, but ``fresh``: then a row that is asked for begins without
    any, and the file keeps all others. Without ``kept`` nothing is written, and nothing is there at first.
    """

    def __init__(self, name: str, fresh: bool = False, kept: bool = True) -> None:
        self._name, self._fresh, self._kept = name, fresh, kept
        self._before = known_rows(name) if kept else []
        self.rows: list[Found] = []

    def row(self, is_asked: bool = True, /, **key: Any) -> Found:
        """The row that has this key, the next of the run."""
        row = next((row for row in self._before if all(row.get(name) == value for name, value in key.items())), key)
        if self._fresh and is_asked and row is not key:
            self._before.remove(row)
            row = key
        self.rows.append(row)
        return row

    def fill(self, row: Found, figure: str, measured: Callable[[], Any]) -> Any:
        """The figure of a row, measured where it is not there yet."""
        if figure in row:
            print(f"{self._name}, {_key(row)}, {figure}: there already, --fresh measures it again", flush=True)
            return row[figure]
        fill(self._name, row, figure, measured)
        self._save()
        return row[figure]

    def fill_side_by_side(self, rows: Sequence[Found], filled: Callable[[Found], Found]) -> None:
        """Fills rows two at a time, each in another process, which gets the row and returns it with all its figures.

        Rows that cannot be filled are named when all others are saved.

        Raises:
            Exception: the one that one of them raised.
        """
        if not rows:
            print(f"{self._name}: all figures are there already, --fresh measures them again", flush=True)
        failed: BaseException | None = None
        with ProcessPoolExecutor(AT_A_TIME, mp_context=get_context("spawn")) as pool:
            futures = {pool.submit(filled, row): row for row in rows}
            try:
                for future in as_completed(futures):
                    error = future.exception()
                    if error is None:
                        futures[future].update(future.result())
                        self._save()
                    else:
                        print(f"{self._name}, {_key(futures[future])}: {error!r}", file=sys.stderr, flush=True)
                        failed = error
            except KeyboardInterrupt:  # finished rows are saved; no waiting one is begun
                pool.shutdown(cancel_futures=True)
                raise
        if failed:
            raise failed

    def _save(self) -> None:
        if self._kept:
            save(self._name, self._all())

    def _all(self) -> list[Found]:
        """The rows of this run that have a figure, then those of earlier runs that it has not come to."""
        come_to = [row for row in self.rows if any(not isinstance(value, (str, int)) for value in row.values())]
        return come_to + [row for row in self._before if not any(row is own for own in self.rows)]


def _key(row: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in row.values() if isinstance(value, (str, int)))


def _text(found: Any) -> str:
    if not isinstance(found, dict) or not {"reachable", "total"} & found.keys():
        return str(found)
    if "reachable" in found:
        return f"out of reach, at least {found['reachable'] / 1e6:.0f} MB"
    took = f", planned in {found['seconds']:.1f} s" if "seconds" in found else ""
    return f"{found['total'] / 1e6:.0f} MB, of which planned {found['planned'] / 1e6:.0f}{took}"


@contextmanager
def no_plans_on_disk() -> Iterator[None]:
    """Plans of earlier runs are not read while this is open."""
    before = os.environ.get("ECHO_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ECHO_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["ECHO_CACHE_DIR"]
            else:
                os.environ["ECHO_CACHE_DIR"] = before


def measure_from_command_line(document: str | None, run: Callable[[bool], object]) -> None:
    """Runs a script that ``document`` describes: what its results have is measured again with ``--fresh`` alone."""
    options = parser(document)
    options.add_argument("--fresh", action="store_true", help="measure again what is in the results already")
    arguments = options.parse_args()
    with no_plans_on_disk():
        run(arguments.fresh)
