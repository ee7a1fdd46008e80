"""The optimal schedule, by integer programming: for small graphs, and as an oracle for the other policies.

`echo.policies.solvers.milp` is the program, HiGHS (Huangfu and Hall, 2018) solves it: ``pip install
mxnet-echo[ilp]``. It counts live bytes without work in place, which is exact for graphs that come as data
(`echo.policies.data_graph`); on MXNet's graphs it is an approximation, and callers have to evaluate the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo.errors import OptionError
from echo.ir.schedule import RecomputeSchedule
from echo.policies.problem import Problem
from echo.policies.solvers.ruin_recreate import RuinRecreate

if TYPE_CHECKING:
    from echo.policies.solvers.milp import Model

logger = logging.getLogger("echo")

# HiGHS takes seconds to minutes for up to 6,000 binary variables; 4 minutes gave no bound with 40,000 (ResNet-50).
MOST_BINARIES = 10_000
_TOLERANCE = 1e-9  # the part of a budget by which a solution may exceed it: below a gigabyte, less than a byte


class SolvedModel(NamedTuple):
    """A schedule, and ``gap``, the part of its objective that a better one might save; 0 where it is proven optimal.

    ``bytes`` is the peak as the program counts it, None where a budget was given.
    """

    schedule: RecomputeSchedule
    gap: float
    bytes: int | None = None


@dataclass(frozen=True)
class IntegerProgram:
    """The fastest schedule within ``max_bytes``; without it, the smallest within ``max_seconds``, the fastest of those.

    time_limit: seconds for all programs together, if the problem's deadline is not before that. Then the best schedule
        so far is returned, or without one that of `echo.policies.solvers.ruin_recreate`, with a warning that has the
        gap.
    gap: a program counts as solved where a better schedule could save at most this part of the objective.
    """

    time_limit: float = 60.0
    gap: float = 1e-6
    name: str = "ilp"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        started = time.monotonic()
        solved = self.solve(problem)
        if solved.gap > self.gap:
            logger.warning(
                "echo: policy ilp: stopped after %.2g s, a better schedule may save up to %s of the objective",
                time.monotonic() - started, "all" if solved.gap == float("inf") else f"{100 * solved.gap:.2g} %",
            )  # fmt: skip
        return solved.schedule

    def solve(self, problem: Problem) -> SolvedModel:
        """The best schedule that was found, and its gap.

        Raises:
            OptionError: highspy is not installed, or the graph is too large.
        """
        from echo.policies.solvers.milp import Model  # rarely used, and half a megabyte to load

        solver = _solver()
        size = Model.size(problem)
        if size > MOST_BINARIES:
            raise OptionError(
                f"policy 'ilp': expected at most {MOST_BINARIES:,} pairs of a candidate and a backward node, "
                f"got {size:,}; 'search' plans graphs of any size"
            )
        if not problem.candidates:
            return SolvedModel({}, 0.0)
        end = min(time.monotonic() + self.time_limit, problem.deadline.at)
        if problem.max_bytes is not None:
            solved = self._run(solver, end, problem, problem.max_bytes, problem.max_seconds)
            if solved is not None:
                return solved
        return self._smallest(solver, end, problem)

    def _smallest(self, solver: Any, end: float, problem: Problem) -> SolvedModel:
        # a budget out of reach outranks the bound on time
        seconds = problem.max_seconds if problem.max_bytes is None else None
        least = self._run(solver, end, problem, None, seconds)
        if least is None:
            return SolvedModel({}, float("inf"))
        fastest = self._run(solver, end, problem, least.bytes, seconds, least.schedule)
        return least if fastest is None else SolvedModel(fastest.schedule, max(least.gap, fastest.gap))

    def _run(
        self,
        solver: Any,
        end: float,
        problem: Problem,
        max_bytes: int | None,
        max_seconds: float | None,
        start: RecomputeSchedule | None = None,
    ) -> SolvedModel | None:
        """Solves one program until ``end``; None where it found no schedule."""
        from echo.policies.solvers.milp import Model

        if start is None and problem.may_split and not problem.must_recompute:
            start = RuinRecreate().choose(replace(problem, max_bytes=max_bytes, max_seconds=max_seconds))
        model = Model(problem, max_bytes, max_seconds)
        left = end - time.monotonic()
        if left <= 0:
            return None if start is None else self._unsolved(problem, start, max_bytes, max_seconds)
        highs = _new(solver)
        # With presolve, HiGHS 1.15.1 calls a schedule optimal that costs 3.82 s where another takes 3.22 s, on a graph
        # of the 560 in tests/policies/test_certificate.py (394); without, on none. It takes up to 5 times longer.
        for option, value in (
            ("output_flag", False), ("presolve", "off"), ("threads", 1), ("random_seed", 1),
            ("time_limit", left), ("mip_rel_gap", self.gap), ("mip_abs_gap", 1e-9),
            ("mip_feasibility_tolerance", _TOLERANCE),
            ("primal_feasibility_tolerance", _TOLERANCE),
        ):  # fmt: skip
            highs.setOptionValue(option, value)
        highs.passModel(_lp(solver, model))
        if start is not None:
            solution = solver.HighsSolution()
            solution.col_value = model.start(start)
            highs.setSolution(solution)  # of no effect where it breaks a limit
        _run_apart(highs)
        info = highs.getInfo()
        if info.primal_solution_status != solver.SolutionStatus.kSolutionStatusFeasible:
            return None
        gap = 0.0 if highs.getModelStatus() == solver.HighsModelStatus.kOptimal else float(info.mip_gap)
        values = highs.getSolution().col_value
        return SolvedModel(model.schedule_of(values), gap, model.bytes_of(values))

    def _unsolved(
        self, problem: Problem, start: RecomputeSchedule, max_bytes: int | None, max_seconds: float | None
    ) -> SolvedModel | None:
        """The schedule from which a program would have started, None where that breaks a limit."""
        limited = replace(problem, max_bytes=max_bytes, max_seconds=max_seconds)
        value = problem.value(start)
        return SolvedModel(start, float("inf"), value.bytes) if limited.keeps(value) else None


def _new(solver: Any) -> Any:
    """Returns HiGHS, whose version 1.16 prints a notice before it can be told not to: on standard error."""
    flush = ctypes.CDLL(None).fflush
    try:
        kept = os.dup(1)
    except OSError:  # it is closed
        return solver.Highs()
    try:
        flush(None)
        with contextlib.suppress(OSError):  # standard error is closed
            os.dup2(2, 1)
        return solver.Highs()
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _run_apart(highs: Any) -> None:
    """Runs HiGHS in a thread of its own.

    What solves in one thread first decides for how many threads HiGHS works there, and it refuses to work for another
    number: echo's program after the user's, or the user's after echo's.
    """
    thread = threading.Thread(target=highs.run, name="echo: policy ilp")
    thread.start()
    thread.join()


def _solver() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise OptionError("policy 'ilp' needs highspy: pip install mxnet-echo[ilp]") from error
    return highspy


def _lp(solver: Any, model: Model) -> Any:
    """The program in the form that HiGHS takes."""
    program = model.program
    lp = solver.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.rows)
    lp.col_cost_ = np.array(program.cost)
    lp.col_lower_, lp.col_upper_ = np.zeros(len(program.cost)), np.array(program.top)
    lp.row_lower_, lp.row_upper_ = np.array(program.lower), np.array(program.upper)
    types = solver.HighsVarType
    lp.integrality_ = [types.kInteger if integral else types.kContinuous for integral in program.integral]
    lp.a_matrix_.format_ = solver.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *map(len, program.rows)])
    lp.a_matrix_.index_ = np.array([column for row in program.rows for column in row], np.int32)
    lp.a_matrix_.value_ = np.array([factor for row in program.rows for factor in row.values()])
    return lp
