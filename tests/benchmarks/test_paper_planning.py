"""Results that a run goes on with, the search for what fits, and parts of a model's memory."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import echo
from benchmarks import record
from benchmarks.models import Model
from benchmarks.paper import nmt
from benchmarks.paper.breakdown import OTHER, PARTS, cells, outputs_a_step, parts
from benchmarks.paper.largest import largest
from benchmarks.paper.planning import Results, memonger, mirror, no_plans_on_disk, planned, stock, way
from benchmarks.paper.sweeps import model as swept
from echo.report.usage import GAPS

FOUND = {"planned": 1, "total": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setenv("DIRTY", "1")  # of whatever tree these tests run in
    return tmp_path


@pytest.fixture(scope="module")
def small() -> Model:
    return nmt.model("small", nmt.Setting(1, 32, 32, 8, attention=32, steps=4))


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows, whose figures are of today."""
    rows: list[dict[str, Any]] = json.loads((folder / "some.json").read_text(encoding="utf-8"))["rows"]
    measured = [row.pop("measured", None) for row in rows]
    assert all(each is None or each == [datetime.date.today().isoformat(), record.commit()] for each in measured)
    return rows


def never() -> dict[str, Any]:
    raise AssertionError("it was measured again")


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "stock": float(row["workload"])}


def test_a_run_goes_on_where_it_stopped(folder: Path) -> None:
    first = Results("some")
    first.fill(first.row(workload="a"), "stock", lambda: FOUND)
    assert read(folder) == [{"workload": "a", "stock": FOUND}]
    again = Results("some")
    row = again.row(workload="a")
    assert again.fill(row, "stock", never) == FOUND
    again.fill(row, "mirror", lambda: FOUND)
    again.fill(again.row(workload="b"), "stock", lambda: FOUND)
    assert read(folder) == [{"workload": "a", "stock": FOUND, "mirror": FOUND}, {"workload": "b", "stock": FOUND}]


def test_rows_that_a_run_was_not_asked_for_are_kept(folder: Path) -> None:
    first = Results("some")
    for name in "ab":
        first.fill(first.row(workload=name), "stock", lambda: FOUND)
    again = Results("some")
    again.row(workload="c")  # without a figure
    again.fill(again.row(workload="b"), "mirror", lambda: FOUND)
    assert [row["workload"] for row in read(folder)] == ["b", "a"]


def test_fresh_measures_again(folder: Path) -> None:
    first = Results("some")
    first.fill(first.row(workload="a"), "stock", lambda: FOUND)
    again = Results("some", fresh=True)
    again.fill(again.row(workload="a"), "stock", lambda: {"planned": 3, "total": 3})
    assert read(folder) == [{"workload": "a", "stock": {"planned": 3, "total": 3}}]


def test_fresh_keeps_the_rows_that_were_not_asked_for(folder: Path) -> None:
    first = Results("some")
    for name in "abc":
        first.fill(first.row(workload=name), "stock", lambda: FOUND)
    again = Results("some", fresh=True)
    again.row(False, workload="a")
    again.fill(again.row(workload="b"), "stock", lambda: {"planned": 3, "total": 3})
    assert {row["workload"]: row["stock"]["planned"] for row in read(folder)} == {"a": 1, "b": 3, "c": 1}


def test_rows_filled_side_by_side_are_saved_in_the_order_of_the_run(folder: Path) -> None:
    first = Results("some")
    rows = [first.row(workload=name) for name in "abc"]
    first.fill_side_by_side(rows, partial(dict, stock=FOUND))
    assert rows == read(folder) == [{"workload": name, "stock": FOUND} for name in "abc"]


@pytest.mark.slow
def test_rows_that_were_filled_are_kept_where_another_cannot_be(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Results("some")
    rows = [first.row(workload=name) for name in ("1", "one")]
    with pytest.raises(ValueError, match="could not convert"):
        first.fill_side_by_side(rows, _filled)
    assert "some, one: ValueError" in capsys.readouterr().err
    assert read(folder) == [{"workload": "1", "stock": 1.0}]


def test_results_not_kept_neither_read_nor_write_files(folder: Path) -> None:
    first = Results("some")
    first.fill(first.row(workload="a"), "stock", lambda: FOUND)
    quick = Results("some", kept=False)
    quick.fill(quick.row(workload="a"), "stock", lambda: {"planned": 3, "total": 3})
    assert read(folder) == [{"workload": "a", "stock": FOUND}]


@pytest.mark.parametrize("before", [None, "elsewhere"])
def test_plans_on_disk_are_elsewhere_for_a_while(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHO_CACHE_DIR", raising=False)
    if before:
        monkeypatch.setenv("ECHO_CACHE_DIR", before)
    with no_plans_on_disk():
        assert os.environ["ECHO_CACHE_DIR"] not in (None, before)
    assert os.environ.get("ECHO_CACHE_DIR") == before


@pytest.mark.parametrize(
    ("held", "limit", "start", "expected"),
    [
        (lambda n: 50 + 7 * n, 1000, 4, 135),
        (lambda n: 50 + 7 * n, 1000, 500, 135),
        (lambda n: 50 + 7 * n, 50 + 7 * 4, 4, 4),
        (lambda n: 50 + 7 * n, 50, 4, 0),
        (lambda n: 10 * (n // 8) + n, 1000, 2, 447),  # a staircase
        (lambda n: n * n, 1000, 2, 31),
        (lambda n: 0 if n < 100 else 2000, 1000, 2, 99),  # no line at all
    ],
)
def test_the_largest_that_fits(held: Callable[[int], int], limit: int, start: int, expected: int) -> None:
    tried: list[int] = []

    def counted(number: int) -> int:
        tried.append(number)
        return held(number)

    assert largest(counted, limit, start) == expected
    assert expected == 0 or (held(expected) <= limit < held(expected + 1))
    assert {expected, expected + 1} <= {0, *tried}
    assert len(tried) == len(set(tried)) < 100


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_planning")
def test_each_way_plans_the_model_as_it_is_trained(small: Model) -> None:
    default, mirrored, least = way(small, "default"), mirror(small), memonger(small)
    plan = echo.plan(small.symbol, grad_req=small.grad_req(), max_planning=None, **small.shapes)
    assert stock(small) == {"planned": plan.before.planned, "total": plan.before.total} == way(small, "stock")
    assert {name: default[name] for name in ("planned", "total")} == {
        "planned": plan.after.planned,
        "total": plan.after.total,
    }
    assert least["total"] < mirrored["total"]
    assert least["heavy"] > 0
    assert planned(small, fuse=False, max_overhead=None, memory_budget=least["total"])["heavy"] <= least["heavy"]


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_planning")
def test_unreachable_budget_gives_the_reachable_one(small: Model) -> None:
    found = planned(small, memory_budget=1024)
    assert set(found) == {"reachable"}
    assert planned(small, memory_budget=found["reachable"])["total"] <= found["reachable"]


@pytest.mark.parametrize(("sweep", "value"), [("layers", 1), ("hidden", 64), ("batch", 4)])
def test_a_sweep_changes_one_value(sweep: str, value: int) -> None:
    model, given = swept(sweep, value), nmt.SETTINGS["tbd"]
    shapes = dict(zip(model.symbol.list_arguments(), model.symbol.infer_shape(**model.shapes)[0]))
    units = value if sweep == "hidden" else given.hidden
    assert model.shapes["source"] == (value if sweep == "batch" else given.batch, given.steps)
    assert shapes["attention_query_weight"] == (units, units)
    assert ("decoder1_h2h_weight" in shapes) == (sweep != "layers")


@pytest.mark.slow
def test_parts_add_up_to_all_that_is_held(small: Model) -> None:
    profile = echo.profile(small.symbol, grad_req=small.grad_req(), **small.shapes)
    for usage in profile.usages.values():
        found = parts(usage)
        assert sum(found.values()) == usage.total
        assert set(found) == {*PARTS, OTHER, GAPS, "workspaces"}
    assert parts(profile.usages["stock"])["attention"] > parts(profile.usages["echo"])["attention"]


@pytest.mark.slow
def test_a_cell_keeps_its_gates_and_states() -> None:
    assert cells(3).symbol.infer_shape(**cells(3).shapes)[1] == [(128, 512)]
    found = outputs_a_step("stock")
    assert 6 <= found["maps"] <= found["planned"]  # four gates, the state and its tanh
    assert outputs_a_step("unfused")["planned"] < found["planned"]
