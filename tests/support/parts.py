"""Which cases of a test are slow, and which of the slow ones a change is tried with."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Sequence, TypeVar

import pytest

T = TypeVar("T")


def mark_slow(items: Sequence[pytest.Item]) -> None:
    """Of a test with the marker ``every(n)``, the first case and each n-th after it are quick, the others slow."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("every")
        if marker is not None:
            if seen[name_of(item)] % marker.args[0]:
                item.add_marker("slow")
            seen[name_of(item)] += 1


def name_of(item: pytest.Item) -> str:
    """The name that all cases of a test have."""
    return item.nodeid.partition("[")[0]


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def share(items: Sequence[tuple[T, bool]], first: int, step: int) -> list[T]:
    """One of ``step`` parts of the slow cases; together they are all of them.

    Args:
        items: each with whether it is slow. Those that are not are in every part.
        first: the number of the part; beyond ``step`` it begins again.
    """
    numbers = itertools.count(-first)
    return [item for item, slow in items if not slow or next(numbers) % step == 0]
