"""What the integer program says where it cannot prove; that it is optimal stands in test_certificate.py."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading

import pytest

from echo.errors import OptionError
from echo.policies import ilp
from echo.policies.data_graph import problem_of_graph, solve_graph
from echo.policies.ilp import MOST_BINARIES, IntegerProgram
from echo.policies.solvers.ruin_recreate import RuinRecreate
from echo.system.process import Deadline
from tests.support.cases import any_case
from tests.support.data_graphs import chain, ilp_graph, ilp_plans
from tests.support.planning import problem_of


def test_time_that_runs_out_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """It then returns what it began with, and how much better another schedule might be."""
    budget = ilp_plans("unet_b11")[5]["peak_bytes"]
    problem = problem_of_graph(*ilp_graph("unet_b11"), max_bytes=budget)
    solved = IntegerProgram(time_limit=0.2).solve(problem)
    assert solved.gap > 0
    assert problem.value(solved.schedule).bytes <= budget
    with caplog.at_level(logging.WARNING, logger="echo"):
        IntegerProgram(time_limit=0.2).choose(problem)
    stopped = re.search(r"echo: policy ilp: stopped after (\S+) s, a better schedule may save up to", caplog.text)
    assert stopped is not None
    assert 0.2 <= float(stopped[1]) < 60


def test_proven_schedule_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    problem = problem_of_graph(*chain(10), max_bytes=8)
    with caplog.at_level(logging.WARNING, logger="echo"):
        assert problem.value(IntegerProgram().choose(problem)).bytes <= 8
    assert caplog.text == ""


def test_large_graphs_are_refused() -> None:
    problem = problem_of_graph(*chain(101))
    with pytest.raises(OptionError, match=f"at most {MOST_BINARIES:,} pairs .* got 10,201; 'search' plans"):
        IntegerProgram().choose(problem)


def test_missing_solver_raises_option_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(OptionError, match=r"policy 'ilp' needs highspy: pip install mxnet-echo\[ilp\]"):
        IntegerProgram().choose(problem_of_graph(*chain(3)))


def test_graphs_of_mxnet() -> None:
    """Several outputs, masks of Dropout, in-place work: an approximation, but one that saves memory."""
    for name in ("dropout", "slices", "two outputs"):
        problem = problem_of(any_case(name).training, match_ranges=(16,))
        stock = problem.value({}).bytes
        least = problem.value(IntegerProgram(time_limit=20).choose(problem)).bytes
        assert least < stock, name


def test_all_programs_of_a_planning_share_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that each program moves on by all the time that it is given, less a second."""
    import highspy

    clock, given = [100.0], []

    class Slow(highspy.Highs):  # type: ignore[misc]
        def setOptionValue(self, option: str, value: object) -> object:  # HiGHS calls it so
            if option == "time_limit":
                given.append(value)
                clock[0] += float(value) - 1 if len(given) == 1 else 5
                value = 60.0
            return super().setOptionValue(option, value)

    monkeypatch.setattr(highspy, "Highs", Slow)
    monkeypatch.setattr(ilp.time, "monotonic", lambda: clock[0])
    policy, graph = IntegerProgram(time_limit=30), chain(10)
    found = solve_graph(policy, *graph, max_bytes=3, deadline=Deadline(10, clock[0] + 10, 10))  # out of reach
    assert given == [10.0, 1.0], "then the time was over"
    problem = problem_of_graph(*graph)
    assert found.value.bytes == problem.value(RuinRecreate().choose(problem)).bytes


def test_programs_of_the_user_with_several_threads() -> None:
    """Before and after echo's, which works with one."""
    import highspy

    def solve() -> str:
        solver = highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 2)):
            solver.setOptionValue(option, value)
        columns = [solver.addBinary() for _ in range(5)]
        solver.addConstr(sum(columns) <= 2)
        solver.maximize(sum(value * column for value, column in enumerate(columns, 1)))
        return f"{solver.getModelStatus().name} {solver.getObjectiveValue():g}"

    def alternate() -> None:
        for _ in range(2):
            answers.append(solve())
            answers.append(IntegerProgram(time_limit=20).solve(problem_of_graph(*chain(10), max_bytes=8)).gap)

    answers: list[object] = []
    user = threading.Thread(target=alternate)  # for other tests HiGHS stays as it is
    user.start()
    user.join()
    assert answers == ["kOptimal 9", 0.0] * 2


def test_solver_without_time_still_gives_a_schedule() -> None:
    budget = ilp_plans("unet_b11")[5]["peak_bytes"]
    problem = problem_of_graph(*ilp_graph("unet_b11"), max_bytes=budget)
    solved = IntegerProgram(time_limit=0.0).solve(problem)
    assert solved.gap == float("inf")
    assert solved.schedule
    assert problem.value(solved.schedule).bytes <= budget


def test_solver_prints_nothing_on_standard_output() -> None:
    code = "from echo.policies import ilp; ilp._new(ilp._solver())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
