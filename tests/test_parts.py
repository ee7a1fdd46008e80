"""Parts of the slow cases."""

from __future__ import annotations

import pytest

from tests.support.parts import share

ITEMS = [(f"many{case}", "many", case != 2) for case in range(9)] + [(f"few{case}", "few", True) for case in range(2)]


@pytest.mark.parametrize("step", [2, 3, 4])
def test_together_they_are_all(step: int) -> None:
    parts = [share(ITEMS, first, step) for first in range(step)]
    assert {name for part in parts for name in part} == {name for name, *_ in ITEMS}
    assert all("many2" in part for part in parts)  # which is quick
    slow = [name for part in parts for name in part if name.startswith("many") and name != "many2"]
    assert len(slow) == len(set(slow)) == 8
    assert share(ITEMS, step + 1, step) == parts[1]


def test_share_leaves_out_none_of_few_cases() -> None:
    assert [name for name in share(ITEMS, 1, 3) if name.startswith("few")] == ["few0", "few1"]
