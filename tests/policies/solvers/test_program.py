"""Columns are numbered, and what does not depend on the schedule goes to the bounds of a row."""

from __future__ import annotations

from echo.policies.solvers.program import CONSTANT, Program


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
