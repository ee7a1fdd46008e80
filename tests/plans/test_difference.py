"""Differences of plans: figures of both side by side, and what only one of them fuses or recomputes."""

from __future__ import annotations

from dataclasses import replace

from echo.plans.decisions import RECOMPUTE, STASH, WORKSPACES, Decision
from echo.plans.difference import difference, difference_rows
from echo.plans.key import Argument
from echo.plans.plan import Plan
from tests.plans.test_plan import PLAN_KEY, plan

MB = 10**6


def decision(node: int, op: str, size: int, action: str = RECOMPUTE, name: str = "") -> Decision:
    return Decision(node, name or f"{op}{node}", op, 0, action, size * MB, 0.0, "")


def rows_by(by: str, this: Plan, other: Plan) -> dict[str, tuple[object, object]]:
    return {row["name"]: (row["this"], row["other"]) for row in difference_rows(this, other) if row["by"] == by}


def cells(text: str) -> dict[str, list[str]]:
    """The cells of each line of the tables, by the first."""
    lines = ([cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line)
    return {first: rest for first, *rest in lines}


def test_memory_and_time_of_both_plans_and_their_change() -> None:
    this = plan(stock_seconds=0.2)
    smaller = replace(this.after, planned=90 * MB, static={**this.after.static, WORKSPACES: 12 * MB})
    other = plan(after=smaller, step_seconds=0.098)
    memory = rows_by("memory", this, other)
    assert memory["planned by MXNet, original graph"] == (300 * MB, 300 * MB)
    assert memory["planned by MXNet, planned graph"] == (120 * MB, 90 * MB)
    assert memory["held by the executor, planned graph"] == (161 * MB, 143 * MB)
    assert memory[f"of it {WORKSPACES}"] == (0, 12 * MB)
    assert "of it weights" not in memory, "both have as many"
    found = cells(difference(this, other))
    assert found["planned by MXNet, planned graph"] == ["120.0", "90.0", "-30.0 (-25 %)"]
    assert found["original graph"] == ["200.00", "not known", ""]
    assert found["planned graph"] == ["102.00", "100.00", "-2.00"]


def test_change_of_time_is_that_of_the_rounded_numbers() -> None:
    this, other = plan(step_seconds=0.0, overhead_seconds=24.6e-6), plan(step_seconds=0.0, overhead_seconds=65.1e-6)
    assert cells(difference(this, other))["of it recomputation"] == ["0.02", "0.07", "+0.05"]


def test_maps_that_one_plan_recomputes_come_by_operator_largest_first() -> None:
    shared = decision(1, "tanh", 50)
    this = plan(decisions=(shared, decision(2, "exp", 3), decision(3, "exp", 4), decision(4, "relu", 20, STASH)))
    other = plan(decisions=(shared, decision(2, "exp", 3, STASH), decision(3, "exp", 4), decision(4, "relu", 20)))
    found = [row for row in difference_rows(this, other) if row["by"] == "recomputed"]
    assert [(row["name"], row["this"], row["other"], row["maps"], row["example"]) for row in found] == [
        ("relu", 0, 20 * MB, [0, 1], "relu4"), ("exp", 3 * MB, 0, [1, 0], "exp2")
    ]  # fmt: skip
    assert cells(difference(this, other))["exp"] == ["1", "3.0", "0", "0.0", "exp2"]


def test_fused_operators_are_counted_by_pattern() -> None:
    this, other = plan(fused=(("lstm_cell", 4), ("lstm_cell", 9))), plan(fused=(("lstm_cell", 4), ("attention", 7)))
    assert rows_by("fused", this, other) == {"lstm_cell": (2, 1), "attention": (0, 1)}
    assert cells(difference(this, other))["lstm_cell"] == ["2", "1", "-1"]


def test_same_graph_with_other_names_has_no_difference() -> None:
    """Gluon and MXNet number names again in each process."""
    this, other = (plan(decisions=(decision(4, "tanh", 9, name=name),)) for name in ("tanh0", "tanh5"))
    assert rows_by("recomputed", this, other) == {}
    text = difference(this, other)
    assert "recomputed by one plan only" not in text
    assert "note:" not in text


def test_graphs_with_other_fused_operators_are_compared_by_names() -> None:
    """Decisions count the nodes of the graph with its fused operators."""
    this = plan(decisions=(decision(4, "tanh", 9, name="tanh0"),))
    other = plan(decisions=(decision(2, "tanh", 9, name="tanh0"),), fused=(("lstm_cell", 1),))
    assert rows_by("recomputed", this, other) == {}


def test_other_times_of_the_same_graph_are_explained() -> None:
    note = "the times of the original graph differ because its operators were measured again"
    assert note in difference(plan(), plan(step_seconds=0.098))
    assert note not in difference(plan(), plan())


def test_rows_beyond_twelve_operators_are_summed_up() -> None:
    this = plan(decisions=tuple(decision(node, f"op{node}", node) for node in range(1, 16)))
    found = cells(difference(this, plan(decisions=())))
    assert found["3 more"] == ["3", "6.0", "0", "0.0", ""]


def test_plans_for_other_shapes_say_so() -> None:
    rest = PLAN_KEY.arguments[1:]
    other = plan(key=replace(PLAN_KEY, arguments=(Argument((16, 4), "float32", "null"), *rest)))
    note = "note: the other plan was made for something else: argument '0': expected shape (8, 4), got (16, 4)"
    assert note in difference(plan(), other)
    far = replace(PLAN_KEY, device="gpu", settings={"A": "1", "B": "2"}, graph="def")
    assert "note: and 1 more difference of this kind" in difference(plan(), plan(key=far))
