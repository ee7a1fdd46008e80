"""The rule for subjects of commits, and that this history keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import commits


@pytest.mark.parametrize(
    "subject",
    ["docs: say what a shared cache folder costs", "plans, policies: merge 21 modules", "tests: feed both", "ir: x y"],
)
def test_good_subject_passes(subject: str) -> None:
    assert commits.wrong([subject]) == []


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("Measuring takes no more than half", "expected 'area: imperative' without a full stop"),
        ("docs: Say it.", "expected 'area: imperative' without a full stop"),
        ("docs:", "expected 'area: imperative' without a full stop"),
        ("docs: " + "x" * 67, "expected at most 72 characters, got 73"),
        ("passes: moved the choice", "expected an imperative after the area, got 'moved'"),
        ("passes: moving the choice", "expected an imperative after the area, got 'moving'"),
    ],
)
def test_bad_subject_is_named_with_the_reason(subject: str, reason: str) -> None:
    assert commits.wrong([subject]) == [f"{subject!r}: {reason}"]


def test_history_outside_of_a_clone_is_empty(tmp_path: Path) -> None:
    assert commits.subjects(tmp_path) == []


def test_subjects_since_the_last_release_keep_the_rule() -> None:
    assert commits.wrong(commits.subjects()) == []
