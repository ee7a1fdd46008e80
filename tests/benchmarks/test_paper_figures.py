"""Figures from planned bytes: ratios, broken expectations, and regressions against the committed results."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.paper import __main__ as program
from benchmarks.paper.figures import HEADLINE, compared, faults, headline, net, regressions, times

ROW = {
    "workload": "some",
    "stock": {"planned": 800, "total": 1000},
    "mirror": {"planned": 700, "total": 900},
    "default": {"planned": 200, "total": 420},
    "unfused": {"planned": 300, "total": 500},
    "memonger": {"planned": 250, "total": 450, "heavy": 7},
    "at_memonger": {"planned": 250, "total": 450, "heavy": 3},
}


def changed(**figures: dict[str, int]) -> dict[str, Any]:
    return {**ROW, **figures}


def test_net_leaves_out_what_no_planner_changes() -> None:
    assert net(ROW, "stock") == 800
    assert net(ROW, "default") == 220  # with 20 bytes of workspaces
    assert times(ROW, "default") == pytest.approx(1000 / 420)
    assert times(ROW, "default", "net") == pytest.approx(800 / 220)


def test_the_mean_and_the_largest_are_those_of_the_four() -> None:
    totals = dict(zip(HEADLINE, (500, 250, 1000, 400)))
    rows = [changed(default={"planned": 1, "total": total}) | {"workload": name} for name, total in totals.items()]
    other = changed(default={"planned": 1, "total": 1})
    assert headline([*rows, other], "default") == (pytest.approx((2 + 4 + 1 + 2.5) / 4), 4)
    with pytest.raises(ValueError, match=r"expected results of nmt_tbd, .*, got 3 of them"):
        headline(rows[1:], "default")


def test_a_row_in_which_all_holds_has_no_fault() -> None:
    assert faults(ROW) == []


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        (
            {"default": {"planned": 1, "total": 1001}, "mirror": {"planned": 1, "total": 2000}},
            "default: more than stock",
        ),
        ({"unfused": {"planned": 1, "total": 900}}, "unfused: not below the mirror"),
        ({"at_memonger": {"planned": 1, "total": 1, "heavy": 8}}, "more heavy operators than memonger"),
        ({"at_memonger": {"reachable": 460}}, "does not reach memonger's memory"),
    ],
)
def test_figures_that_do_not_hold_are_named(figures: dict[str, dict[str, int]], fault: str) -> None:
    assert [line for line in faults(changed(**figures)) if fault in line] == faults(changed(**figures)) != []


@pytest.mark.parametrize(
    ("name", "found", "lines"),
    [
        ("stock", {"planned": 200, "total": 420}, 0),
        ("stock", {"planned": 100, "total": 300}, 0),
        ("stock", {"planned": 202, "total": 424}, 0),  # at most 1 % more
        ("stock", {"planned": 203, "total": 424}, 1),
        ("stock", {"planned": 203, "total": 425}, 2),
        ("default", {"planned": 210, "total": 441}, 0),  # at most 5 %, where a bound on time decides
        ("default", {"planned": 211, "total": 441}, 1),
        ("at_memonger", {"planned": 400, "total": 800}, 0),  # within a budget
        ("at_memonger", {"reachable": 300}, 1),
        ("default", {"reachable": 300}, 1),
    ],
)
def test_more_bytes_are_flagged(name: str, found: dict[str, int], lines: int) -> None:
    committed = changed(**{name: {"planned": 200, "total": 420}})
    worse = regressions([changed(**{name: found})], [committed])
    assert len(worse) == lines
    assert all(f"some, {name}" in line for line in worse)


def test_only_what_both_sides_have_is_compared() -> None:
    new = {"workload": "new", "stock": {"planned": 10**9, "total": 10**9}}
    found = [{"workload": "some", "stock": ROW["stock"], "other": {"planned": 10**9, "total": 10**9}}, new]
    assert regressions(found, [ROW]) == []
    assert compared(found, [ROW]) == 1


def fake(monkeypatch: pytest.MonkeyPatch, planned: int) -> None:
    """The quick run finds so many bytes where 200 are committed."""
    found = {"workload": "some", "unbounded": {"planned": planned, "total": planned}}
    committed = {"workload": "some", "unbounded": {"planned": 200, "total": 200}}
    monkeypatch.setattr(program.footprint, "run", lambda *_, **__: [found])
    monkeypatch.setattr(program, "committed", lambda _: {"rows": [committed]})
    monkeypatch.setattr(program, "QUICK", ("some",))
    monkeypatch.setattr(program, "QUICK_WAYS", ("unbounded",))
    monkeypatch.setattr(program.sys, "argv", ["paper", "--quick"])


@pytest.mark.parametrize(("planned", "status"), [(200, 0), (202, 0), (210, 1)])
def test_the_quick_run_fails_where_something_got_worse(
    planned: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, planned)
    assert program.main() == status
    said = capsys.readouterr()
    assert "1 figures held against the committed ones" in said.out
    assert said.err.count("WORSE: some, unbounded") == 2 * status


def test_a_quick_run_that_has_nothing_to_compare_with_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, 200)
    monkeypatch.setattr(program, "QUICK", ("some", "other"))
    assert program.main() == 1
    assert "WORSE: 1 of 2 figures are not committed" in capsys.readouterr().err


@pytest.mark.parametrize("fresh", [True, False])
def test_a_full_run_compares_with_what_git_has(fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: [ROW] for name in program.ALL}
    worse = changed(default={"planned": 400, "total": 600})

    def run(name: str, is_fresh: bool) -> list[dict[str, Any]]:
        assert is_fresh == fresh
        kept[name] = [worse]
        return kept[name]

    monkeypatch.setattr(program, "ALL", {name: lambda fresh, name=name: run(name, fresh) for name in kept})
    monkeypatch.setattr(program, "load", lambda name: {"rows": kept[name]})
    monkeypatch.setattr(program, "committed", lambda _: {"rows": [ROW]})
    drawn: list[str] = []
    monkeypatch.setattr(program, "timed", lambda script, fresh: drawn.append(script))
    monkeypatch.setattr(program.pictures, "draw", lambda: drawn.append("picture"))
    monkeypatch.setattr(program.tables, "main", lambda: drawn.append("tables"))
    found = program.everything(fresh)
    assert len([line for line in found if "some, default" in line]) == 2 * len(kept)
    assert drawn == ["steps", "perplexity", "picture", "tables"]
