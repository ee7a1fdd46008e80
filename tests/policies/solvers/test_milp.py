"""Columns are numbered, and what does not depend on the schedule goes to the bounds of a row."""

from __future__ import annotations

import random

import pytest

from echo.policies.data_graph import problem_of_graph
from echo.policies.solvers.milp import CONSTANT, Model, Program
from tests.support.data_graphs import chain, random_graph


def test_columns_are_numbered_in_order() -> None:
    program = Program()
    assert [program.column(), program.column(2.0, integral=True, top=5.0)] == [0, 1]
    assert (program.cost, program.integral, program.top) == ([0.0, 2.0], [False, True], [1.0, 5.0])


def test_constants_move_the_bounds() -> None:
    program = Program()
    one, other = program.column(), program.column()
    program.row({one: 2.0, other: 0.0, CONSTANT: 3.0}, 0.0, 10.0)
    program.row({other: 1.0}, 1.0, 1.0)
    assert program.rows == [{one: 2.0}, {other: 1.0}]
    assert (program.lower, program.upper) == ([-3.0, 1.0], [7.0, 1.0])


highspy = pytest.importorskip("highspy")


def solved(model: Model, fixed: list[float] | None = None) -> tuple[bool, list[float]]:
    """Whether the program has a solution, with these values of its integral columns; and the best."""
    program, inf = model.program, highspy.kHighsInf
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)  # as in every test of this process: HiGHS keeps to the first number of a thread
    for column, (cost, top, integral) in enumerate(zip(program.cost, program.top, program.integral)):
        low, high = (0.0, min(top, inf)) if fixed is None or not integral else (fixed[column],) * 2
        solver.addCol(cost, low, high, 0, [], [])
        if integral:
            solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    for terms, low, high in zip(program.rows, program.lower, program.upper):
        solver.addRow(max(low, -inf), min(high, inf), len(terms), list(terms), list(terms.values()))
    solver.run()
    found = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return found, list(solver.getSolution().col_value)


@pytest.mark.parametrize("seed", range(12))
def test_a_schedule_is_a_solution_with_its_own_bytes(seed: int) -> None:
    generator = random.Random(seed)
    problem = problem_of_graph(*random_graph(seed, 6))
    backward = [number for number, node in problem.training.operators() if not node.forward]
    schedule = {node: sorted(generator.sample(backward, 2)) for node in problem.candidates if generator.random() < 0.5}
    exact = problem.value(schedule)
    model = Model(problem, None, None)
    found, values = solved(model, model.start(schedule))
    assert found, "a schedule that exists"
    least = model.bytes_of(values)
    assert least is not None
    assert least <= exact.bytes, "values may be let go earlier than where they are read last"
    again = problem.value(model.schedule_of(values))
    assert again.seconds == pytest.approx(exact.seconds)
    assert again.bytes <= exact.bytes


@pytest.mark.parametrize(("most", "possible"), [(12, True), (5, True), (2, False)])
def test_chain_has_a_schedule_down_to_five_bytes(most: int, possible: bool) -> None:
    """A chain of ten bytes has a schedule in five, and none in two."""
    problem = problem_of_graph(*chain(10), max_bytes=most)
    model = Model(problem, most, None)
    found, values = solved(model)
    assert found == possible
    if found:
        best = problem.value(model.schedule_of(values))
        assert best.bytes <= most
        assert (best.seconds == 0) == (most == 12)


def test_seconds_are_bounded() -> None:
    problem = problem_of_graph(*chain(8))
    tight, loose = (Model(problem, None, bound) for bound in (2.0, None))
    found = [problem.value(model.schedule_of(solved(model)[1])) for model in (tight, loose)]
    assert found[0].seconds <= 2.0 < found[1].seconds
    assert found[0].bytes > found[1].bytes


def test_the_size_is_known_before() -> None:
    problem = problem_of_graph(*chain(8))
    assert Model.size(problem) >= len(Model(problem, None, None).run)
