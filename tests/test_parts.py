"""Parts of the slow cases."""

from __future__ import annotations

import pytest

from tests.support.parts import share

ITEMS = [(f"case{number}", number != 2) for number in range(11)]


@pytest.mark.parametrize("step", [2, 3, 4])
def test_parts_are_all_cases_together_and_share_no_slow_one(step: int) -> None:
    parts = [share(ITEMS, first, step) for first in range(step)]
    assert {name for part in parts for name in part} == {name for name, _ in ITEMS}
    assert all("case2" in part for part in parts), "which is quick"
    slow = [name for part in parts for name in part if name != "case2"]
    assert len(slow) == len(set(slow)) == 10
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert share(ITEMS, step + 1, step) == parts[1]
