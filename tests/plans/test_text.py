"""A plan as text: its sums, its largest layers and groups of decisions, and what cannot be broken by names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import OptionError
from echo.plans.decisions import RECOMPUTE, STASH, Decision, MissedFusion, Note
from echo.plans.plan import Plan
from echo.plans.text import NOT_KNOWN, Alternative, Cost
from tests.plans import test_plan
from tests.plans.test_plan import plan
from tests.test_api import SHAPES, network

MB = 1 * 10**6


def rows(text: str) -> list[list[str]]:
    """The cells of all lines that have some."""
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in text.splitlines()]


def many(action: str, sizes: list[int]) -> Plan:
    decisions = tuple(
        Decision(number, f"map{number}", f"op{size}", 0, action, size * MB, 0.001, "why")
        for number, size in enumerate(sizes)
    )
    return plan(decisions=decisions)


def test_memory_by_kind() -> None:
    found = rows(str(plan()))
    assert ["planned by MXNet", "300.0", "120.0"] in found
    assert ["of it alive at the peak", "250.0", "100.0"] in found
    assert ["map gradients", "50.0", "0.0"] in found, "a kind that is there before alone"
    assert ["recomputed maps", "0.0", "40.0"] in found, "and one that is there after alone"
    assert ["held by the executor", "341.0", "161.0"] in found


def test_layers_beyond_the_largest_are_summed() -> None:
    before = replace(plan().before, layers={f"layer{number}": (20 - number) * MB for number in range(12)})
    after = replace(plan().after, layers={"layer0": 3 * MB, "layer11": 5 * MB})
    found = rows(str(plan(before=before, after=after)))
    assert ["layer0", "20.0", "3.0"] in found
    assert ["layer7", "13.0", "0.0"] in found
    assert ["4 more", "42.0", "5.0"] in found
    assert not any("layer8" in row for row in found)
    found = rows(str(plan(before=before, after=replace(after, layers={"layer11": 30 * MB}))))
    assert ["layer11", "9.0", "30.0"] in found, "what grows is shown, too"


def test_alike_maps_are_one_row_the_largest_first() -> None:
    found = rows(str(many(RECOMPUTE, [5, 9, 5])))
    groups = [row for row in found if row[0] in ("op5", "op9")]
    assert groups == [["op5", "2", "10.0", "2.00", "map0", "why"], ["op9", "1", "9.0", "1.00", "map1", "why"]]


def test_stashed_group_has_no_time_in_its_row() -> None:
    (row,) = (row for row in rows(str(many(STASH, [5]))) if row[0] == "op5")
    assert row == ["op5", "1", "5.0", "map0", "why"]


def test_rows_of_two_outputs_of_an_operator_name_the_output() -> None:
    first = Decision(0, "layer", "lstm", 0, STASH, 5 * MB, 0.0, "why")
    found = rows(str(plan(decisions=(first, replace(first, output=1, bytes=2 * MB)))))
    assert [row[3] for row in found if row[0] == "lstm"] == ["layer:0", "layer:1"]


def test_no_more_than_eight_groups() -> None:
    found = rows(str(many(STASH, list(range(1, 12)))))
    assert [row[0] for row in found if row[0].startswith("op")] == [f"op{size}" for size in range(11, 3, -1)]


def test_names_are_no_markup_and_lines_stay_short() -> None:
    strange = replace(plan().decisions[0], name="[bold]" + "long" * 100 + ":smile:", reason="[/red]")
    text = str(plan(decisions=(strange,), notes=(Note("[a note]"),)))
    assert "[bold]" in text
    assert "[/red]" in text
    assert "note: [a note]" in text
    assert max(map(len, text.splitlines())) <= 120


def test_near_misses_are_a_table_with_counts() -> None:
    missed = (*(MissedFusion(number, f"cell{number}", "lstm_cell", "an inner map is read") for number in range(3)),
              MissedFusion(9, "gru", "gru_cell", "a wide state"),
              MissedFusion(7, "b", "bias_act", "a quiet reason", quiet=True))  # fmt: skip
    text = str(plan(missed=missed, notes=(Note("other"),)))
    assert ["lstm_cell", "3", "cell0", "an inner map is read"] in rows(text)
    assert ["gru_cell", "1", "gru", "a wide state"] in rows(text)
    assert "quiet" not in text
    assert [line for line in text.splitlines() if line.startswith("note: ")][:-1] == ["note: other"]


def flip_of(plan: Plan) -> Plan:
    alternative = Alternative(Cost(160 * 10**6, 0.0015), Cost((260 * 10**6) + 512, 0.0), 3)
    return plan.with_alternatives(
        lambda decision: alternative if decision.action == RECOMPUTE else Alternative(note="it cannot be")
    )


def test_answers_print_as_the_golden_text(golden: Callable[[str, str], None]) -> None:
    plan = flip_of(test_plan.plan())
    loaded = Plan.from_json(plan.to_json())
    golden("why.txt", "\n".join(str(each.why(name)) for each in (plan, loaded) for name in
                                ("encoder_tanh", "encoder_fc:0")))  # fmt: skip


def test_answer_has_the_costs_of_its_decision() -> None:
    why = flip_of(test_plan.plan()).why("encoder_tanh:0")
    assert why.decision == test_plan.plan().decisions[0]
    assert why.plan == Cost(120 * 10**6, 0.002)
    assert why.alternative.alike == 3
    assert test_plan.plan().why("encoder_tanh").alternative == Alternative(note=NOT_KNOWN)


def test_names_that_are_not_there() -> None:
    plan = test_plan.plan()
    with pytest.raises(OptionError, match=r"named 'encodr_tanh': .* did you mean encoder_tanh"):
        plan.why("encodr_tanh")
    with pytest.raises(OptionError, match=r"expected one of the plan's 2, as encoder_tanh, encoder_fc"):
        plan.why("zzz")
    twice = replace(plan, decisions=(*plan.decisions, replace(plan.decisions[0], output=1)))
    with pytest.raises(OptionError, match="'encoder_tanh' has 2 feature maps, expected one of encoder_tanh:0, enc"):
        twice.why("encoder_tanh")
    assert twice.why("encoder_tanh:1").decision.output == 1


# Exact figures --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cheap_planning")
def test_costs_are_those_of_plans_with_the_decision_turned_around() -> None:
    """The oracle: MXNet's own planner, of a plan on which the user insists."""
    plan = echo.plan(network(), max_overhead=None, fuse=False, **SHAPES)
    everything = [decision.name for decision in plan.recomputed]
    asked = 0
    for decision in plan.decisions:
        alternative = plan.why(f"{decision.name}:{decision.output}").alternative
        if alternative.alone is None:
            assert decision.action == STASH
            continue
        names = [name for name in everything if name != decision.name]
        names += [decision.name] if decision.action == STASH else []
        other = echo.plan(network(), policy="echo", max_overhead=0.0, recompute=names, fuse=False, **SHAPES)
        if {each.name for each in other.recomputed} == set(names) and other.match_range == plan.match_range:
            asked += 1
            assert alternative.alone.planned == other.after.planned
            assert alternative.alone.seconds == pytest.approx(other.overhead_seconds)
    assert asked >= 3


@pytest.mark.usefixtures("cheap_planning")
def test_the_class_costs_more_than_one_of_it() -> None:
    plan = echo.plan(network(), max_overhead=None, fuse=False, **SHAPES)
    decision = next(decision for decision in plan.recomputed if decision.name == "norm1")
    alternative = plan.why("norm1:0").alternative
    assert alternative.alone is not None
    assert alternative.together is not None
    assert alternative.together.planned >= alternative.alone.planned >= plan.after.planned
    assert (
        alternative.together.seconds
        < alternative.alone.seconds
        == pytest.approx(plan.overhead_seconds - decision.seconds)
    )
    again = echo.plan(network(), max_overhead=None, fuse=False, **SHAPES)  # from memory, and it answers all the same
    assert again.why("norm1:0").alternative == alternative


@pytest.mark.usefixtures("cheap_planning")
def test_kept_map_names_the_users_pattern() -> None:
    plan = echo.plan(network(), keep="tanh1", fuse=False, **SHAPES)
    assert plan.why("tanh1").alternative == Alternative(note="it cannot be recomputed: kept: matches 'tanh1'")


@pytest.mark.usefixtures("cheap_planning")
def test_heavy_operators_have_a_price() -> None:
    model = SMALL["nmt"]()
    plan = echo.plan(model.symbol, **model.shapes)
    heavy = [plan.why(f"{each.name}:{each.output}") for each in plan.decisions if each.op == "FullyConnected"]
    costs = [why.alternative.alone for why in heavy if why.alternative.alone is not None]
    assert costs
    assert all(cost.seconds > plan.overhead_seconds for cost in costs)


def test_mirrored_plans_answer_too(monkeypatch: pytest.MonkeyPatch, cheap_planning: None) -> None:
    monkeypatch.setattr("echo.frontend.framework.install_hook", lambda: "switched off")
    plan = echo.plan(network(), max_overhead=None, recompute=["tanh1", "tanh2"], **SHAPES)
    assert plan.applied == "mirror"
    alternative = plan.why("tanh1").alternative
    assert alternative.alone is not None
    assert alternative.alone.seconds < plan.overhead_seconds
    assert alternative.alike == 1


def test_near_miss_of_a_pattern_says_why_it_is_not_fused() -> None:
    gates = mx.sym.split(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=32), num_outputs=4, axis=1)
    i, o = mx.sym.sigmoid(gates[1]), mx.sym.sigmoid(gates[3])
    c = mx.sym.sigmoid(gates[1]) * mx.sym.var("c0") + i * mx.sym.tanh(gates[2])
    h = mx.sym.elemwise_mul(o, mx.sym.tanh(c), name="hidden")
    plan = echo.plan(mx.sym.FullyConnected(h, num_hidden=3), data=(4, 9), c0=(4, 8))
    answer = str(plan.why("hidden"))
    assert "hidden is not fused as lstm_cell: an LSTM cell whose gates are not the quarters of one array" in answer
    assert any("not fused (1 x, as 'hidden')" in note for note in plan.remarks)
    assert str(Plan.from_json(plan.to_json()).why("hidden")) != ""
