"""Plans are values: they print, compare, and go through JSON unharmed; damaged files are refused."""

from __future__ import annotations

import copy
import json
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest

from echo.errors import GraphError, OptionError
from echo.plans.decisions import RECOMPUTE, STASH, WORKSPACES, Decision, Mark, Memory, MissedFusion, Note, NoteKind
from echo.plans.key import Argument, PlanKey
from echo.plans.plan import Plan, StepTime
from echo.plans.text import Alternative

PLAN_KEY = PlanKey(
    graph="abc",
    operators={"FullyConnected": 1, "tanh": 1},
    arguments=(Argument((8, 4), "float32", "null"), Argument((3, 4), "float32", "write")),
    device="cpu",
    runner="executor",
    settings={},
)


def plan(**changes: Any) -> Plan:
    """A plan of two decisions, of which one map is recomputed."""
    before = Memory(
        planned=300 * 10**6,
        live_peak=250 * 10**6,
        static={"weights": 20 * 10**6, "weight gradients": 20 * 10**6, "inputs": 1 * 10**6, "auxiliary states": 0},
        at_peak={"feature maps": 200 * 10**6, "map gradients": 50 * 10**6},
        layers={"encoder_l0": 120 * 10**6, "decoder_l0": 80 * 10**6},
    )
    after = replace(
        before, planned=120 * 10**6, live_peak=100 * 10**6,
        at_peak={"feature maps": 60 * 10**6, "recomputed maps": 40 * 10**6}, layers={"encoder_l0": 60 * 10**6},
    )  # fmt: skip
    why = "read by 1 gradients; recomputed from fc"
    decisions = (
        Decision(4, "encoder_tanh", "tanh", 0, RECOMPUTE, 140 * 10**6, 0.002, why),
        Decision(3, "encoder_fc", "FullyConnected", 0, STASH, 60 * 10**6, 0.01, "FullyConnected is compute-heavy"),
    )
    values: dict[str, Any] = {
        "decisions": decisions,
        "before": before,
        "after": after,
        "match_range": 2,
        "step_seconds": 0.1,
        "overhead_seconds": 0.002,
        "recomputed_nodes": 1,
        "policy": "search",
        "device": "cpu",
        "applied": "hook",
        "key": PLAN_KEY,
        "marks": (Mark(4, "tanh", {"__echo_recompute__": "0"}),),
        "notes": (Note("a note"),),
    }
    return Plan(**{**values, **changes})


# Figures ------------------------------------------------------------------------------------------------------


def test_plan_figures_follow_from_its_decisions() -> None:
    found = plan()
    assert found.overhead == pytest.approx(0.02)
    assert [decision.name for decision in found.recomputed] == ["encoder_tanh"]
    assert not found.changes_nothing
    assert found.before.total == 341 * 10**6
    assert found.summary() == "300 MB -> 120 MB planned (-60 %), +2.0 % time, 1 feature map recomputed"


def test_the_time_of_a_step_with_fused_operators() -> None:
    found = plan(fused=(("lstm_cell", 4),), stock_seconds=0.34)
    assert found.time == pytest.approx((0.34, 0.102))
    assert found.time is not None
    assert found.time.ratio == found.time_ratio == pytest.approx(0.3)
    assert "(-60 %), -70.0 % time (recomputation +0.6 %), 1 feature map recomputed" in found.summary()
    slower = plan(fused=(("lstm_cell", 4),), stock_seconds=0.051)
    assert slower.time_text() == "+100.0 % time (recomputation +3.9 %)"


def test_a_time_that_was_not_estimated() -> None:
    found = plan(fused=(("lstm_cell", 4),))
    assert found.time is None
    assert found.time_ratio == pytest.approx(1.02)
    assert "(-60 %), recomputation +2.0 % time, 1 feature map" in found.summary()
    assert StepTime(0.0, 0.0).ratio == 1.0


def test_plan_that_changes_nothing() -> None:
    before = plan().before
    found = plan(decisions=(), after=before, applied="none", overhead_seconds=0.0, recomputed_nodes=0)
    assert found.changes_nothing
    assert "(0 %), +0.0 % time, 0 feature maps" in found.summary()


def test_why_of_a_decision_instead_of_a_name_raises_option_error() -> None:
    with pytest.raises(OptionError, match="why: expected the name of a feature map, got Decision"):
        plan().why(plan().decisions[0])  # type: ignore[arg-type]


def test_remarks_say_first_why_nothing_changes_and_what_failed() -> None:
    late = Note("stopped", NoteKind.LATE)
    missed = (
        MissedFusion(4, "cell", "lstm_cell", "no gates"),
        MissedFusion(5, "small", "gru_cell", "too small", quiet=True),
    )
    found = plan(notes=(Note("a note"), late), applied="none", reason="nothing to gain", missed=missed)
    assert found.failed == (late,)
    assert found.remarks == (
        "nothing to gain: the original graph is bound as it is", "stopped", "a note",
        "not fused (1 x, as 'cell'): no gates",
    )  # fmt: skip
    assert found.general_remarks == found.remarks[:-1]


def test_plan_of_nothing_prints() -> None:
    nothing = Memory(0, 0, {}, {}, {})
    found = plan(before=nothing, after=nothing, step_seconds=0.0, overhead_seconds=0.0, decisions=())
    assert found.overhead == 0
    assert found.summary().startswith("0 bytes -> 0 bytes planned (0 %)")
    assert str(found)


def test_plan_with_more_memory_says_so() -> None:
    before = plan().before
    found = plan(after=replace(before, planned=330 * 10**6))
    assert "(+10 %)" in found.summary()


def test_a_summary_counts_what_fused_operators_draw() -> None:
    base = plan()
    drawing = replace(base.after, static={**base.after.static, WORKSPACES: 30 * 10**6})
    expected = "300 MB -> 120 MB planned and 30.0 MB workspaces of fused operators (-50 %)"
    assert plan(after=drawing).summary().startswith(expected)
    little = replace(base.after, static={**base.after.static, WORKSPACES: 1000})
    assert plan(after=little).summary().startswith("300 MB -> 120 MB planned (-60 %)")


def test_summary_of_a_tiny_model_tells_what_its_change_is_made_of() -> None:
    before = replace(plan().before, planned=26_000)
    after = replace(before, planned=14_000, static={WORKSPACES: 92_000})
    said = plan(before=before, after=after).summary()
    assert said.startswith("26.0 kB -> 14.0 kB planned and 92.0 kB workspaces of fused operators (+308 %)")


def test_residuals_are_the_stashed_maps_the_largest_first() -> None:
    base = plan()
    more = (
        *base.decisions,
        Decision(9, "big", "Convolution", 1, STASH, 80 * 10**6, 0.1, "Convolution is compute-heavy"),
    )
    assert plan(decisions=more).residuals() == (
        "80,000,000 bytes, output 1 of Convolution big: Convolution is compute-heavy",
        "60,000,000 bytes, output 0 of FullyConnected encoder_fc: FullyConnected is compute-heavy",
    )


# Printing -----------------------------------------------------------------------------------------------------


def test_plan_prints_as_the_golden_text(golden: Callable[[str, str], None]) -> None:
    text = str(plan())
    assert max(map(len, text.splitlines())) <= 120
    golden("plan.txt", text)


def test_prints_many_decisions_and_layers_briefly() -> None:
    some = plan().decisions[0]
    many = tuple(replace(some, node=number, name=f"n{number}", bytes=number * 10**6) for number in range(200))
    layers = {f"layer{number}": number * 10**6 for number in range(100, 0, -1)}
    found = plan(decisions=many, before=replace(plan().before, layers=layers))
    lines = str(found).splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 120
    assert "93 more" in str(found), "one layer is there after alone"


def test_prints_names_with_brackets_as_they_are() -> None:
    odd = replace(plan().decisions[0], name="layer[bold]x[/bold]", reason="because [red]it[/red] is")
    text = str(plan(decisions=(odd,), notes=(Note("see [link]"),)))
    assert "layer[bold]x[/bold]" in text
    assert "because [red]it[/red] is" in text
    assert "see [link]" in text


# JSON ---------------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan().save(path)
    assert Plan.load(path) == plan()
    assert Plan.load(str(path)) == plan()
    value = json.loads(path.read_text(encoding="utf-8"))
    assert value["format"] == "echo-plan-8"


def test_plans_compare_by_value() -> None:
    assert plan() == plan()
    assert plan() != plan(key=replace(PLAN_KEY, graph="other"))
    assert plan() != plan(decisions=plan().decisions[:1])


def test_names_of_all_scripts_survive(tmp_path: Path) -> None:
    some = plan(decisions=(replace(plan().decisions[0], name='Überlänge "句" \n'),))
    some.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == some


def test_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "nothing.json")


@pytest.mark.parametrize("content", [b"", b"{", b"not json", b"\xff\xfe\x00", b"[1, 2]", b"null", b"3", b'"text"'])
def test_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(GraphError, match=r"plan\.json is not a plan"):
        Plan.load(path)


def test_a_file_of_a_million_brackets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[" * 1_000_000)
    with pytest.raises(GraphError, match=r"plan\.json is not a plan"):
        Plan.load(path)


def test_a_plan_goes_through_pickle_without_what_cannot() -> None:
    some = plan().with_alternatives(lambda _: Alternative())
    assert pickle.loads(pickle.dumps(some)) == some == plan()
    assert some.to_json() == plan().to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "echo-plan-2"}, "expected format echo-plan-8, got 'echo-plan-2' of another version of echo"),
        ({"format": "echo-profile-1"}, "expected format echo-plan-8, got 'echo-profile-1'$"),
        ({"colour": "red"}, "expected no other fields than those of a plan, got colour"),
        ({"before": {"planned": 1}}, "not a plan"),
        ({"decisions": [{"node": 1}]}, "not a plan"),
        ({"decisions": 5}, "decisions must be a list, got 5"),
        ({"notes": None}, "notes must be a list, got None"),
        ({"notes": ["a note"]}, "notes: expected lists of 2 values, got 'a note'"),
        ({"notes": [["remark", 5]]}, "notes: expected a text, got 5"),
        ({"match_range": "two"}, "match_range"),
        ({"step_seconds": "long"}, "step_seconds"),
        ({"step_seconds": float("nan")}, "step_seconds must be a number, got nan"),
        ({"step_seconds": float("inf")}, "step_seconds must be a number, got inf"),
        ({"applied": "magic"}, "applied"),
        ({"marks": 5}, "marks must be a list, got 5"),
        ({"marks": [[4, "tanh"]]}, r"marks: expected lists of 3 values, got \[4, 'tanh'\]"),
        ({"marks": [["4", "tanh", {}]]}, "marks: expected the number and the operator of a node, got '4'"),
        ({"marks": [[4, "tanh", {"a": 1}]]}, "marks: expected attributes of node 4"),
        ({"key": None}, "key"),
        ({"key": {**PLAN_KEY.to_json(), "colour": "red"}}, "key: .*colour"),
        ({"key": {**PLAN_KEY.to_json(), "runner": "train"}}, "key: runner must be one of executor, static"),
        ({"key": {**PLAN_KEY.to_json(), "graph": 7}}, "key: graph must be a text, got 7"),
        ({"key": {**PLAN_KEY.to_json(), "arguments": [[[8.5], "float32", "null"]]}}, "key: arguments"),
        ({"key": {**PLAN_KEY.to_json(), "arguments": [[[8], "float32", "wish"]]}}, "key: arguments"),
        ({"key": {**PLAN_KEY.to_json(), "operators": {"tanh": "1"}}}, "key: operators"),
        ({"_alternatives": None}, "_alternatives"),
        ({"stock_seconds": "long"}, "stock_seconds must be a number"),
        ({"before": {"planned": "much", "live_peak": 0, "static": {}, "at_peak": {}, "layers": {}}}, "planned"),
        ({"before": {"planned": 1, "live_peak": 0, "static": [], "at_peak": {}, "layers": {}}}, "static"),
    ],
)
def test_damaged_value_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Plan.from_json({**plan().to_json(), **change})


@pytest.mark.parametrize("value", [[1], None, "plan"])
def test_value_of_another_type_is_no_plan(value: Any) -> None:
    with pytest.raises(GraphError, match="expected a JSON object, got "):
        Plan.from_json(value)
    if value != "plan":
        with pytest.raises(OptionError, match="expected the name of a file, got "):
            Plan.load(value)


@pytest.mark.parametrize("key", sorted(plan().to_json()))
def test_missing_key_is_named(key: str) -> None:
    value = plan().to_json()
    del value[key]
    with pytest.raises(GraphError, match=key):
        Plan.from_json(value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("action", "burn", "encoder_tanh: expected action stash or recompute, got 'burn'"),
        ("node", "four", "encoder_tanh: node must be a number, got 'four'"),
        ("output", None, "encoder_tanh: output must be a number, got None"),
        ("bytes", 1.5, "encoder_tanh: bytes must be a number, got 1.5"),
        ("seconds", "long", "encoder_tanh: seconds must be a number, got 'long'"),
        ("name", 7, "name"),
        ("reason", None, "encoder_tanh: reason"),
    ],
)
def test_damaged_decision_is_named(key: str, value: Any, message: str) -> None:
    damaged = json.loads(json.dumps(plan().to_json()))
    damaged["decisions"][0][key] = value
    with pytest.raises(GraphError, match=message):
        Plan.from_json(damaged)


def test_damaged_plan_that_loads_also_prints() -> None:
    """No damage ends in another exception, at loading or later."""
    whole = json.loads(json.dumps(plan().to_json()))
    generator = random.Random(0)
    junk: list[Any] = [None, True, -1, 0.5, "text", [], {}, [[]], {"a": 1}, {"a": "b"}]
    for _ in range(300):
        value = copy.deepcopy(whole)
        place: Any = value
        key: Any = generator.choice(list(value))
        while generator.random() < 0.7 and isinstance(place[key], (dict, list)) and place[key]:
            place = place[key]
            key = generator.choice(list(place) if isinstance(place, dict) else range(len(place)))
        place[key] = generator.choice(junk)
        try:
            loaded = Plan.from_json(value)
        except GraphError:
            continue
        assert str(loaded)
