"""Names on the command line of a benchmark."""

from __future__ import annotations

import pytest

from benchmarks.record import asked


def test_names_are_those_that_are_asked_for_or_all() -> None:
    assert asked(["b"], "abc") == ["b"]
    assert asked([], {"a": 1, "b": 2}) == ["a", "b"]


def test_an_unknown_name_ends_the_program() -> None:
    with pytest.raises(SystemExit, match="error: expected names out of a, b, got 'x'"):
        asked(["a", "x"], ["a", "b"])
