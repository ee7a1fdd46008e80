"""Live bytes of storages: views are free, what was there before is not counted, freed memory is given back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch.tracker import PeakTracker  # noqa: E402


def test_storages_are_counted_while_they_live() -> None:
    tracker = PeakTracker()
    with tracker:
        one = torch.ones(256)
        assert (tracker.live, tracker.peak) == (1024, 1024)
        view = one.view(16, 16)[3]
        assert tracker.live == 1024, "a view is free"
        two = one + 1
        assert tracker.live == 2048
        del one
        assert tracker.live == 2048, "the view holds it"
        del view
        assert tracker.live == 1024
        two.add_(1)
        assert (tracker.live, tracker.peak) == (1024, 2048)
    del two
    assert (tracker.live, tracker.peak) == (0, 2048), "also after the mode has ended"


def test_memory_from_before_is_not_counted() -> None:
    tracker, given = PeakTracker(), torch.ones(256)
    tracker.ignore([given, 3])
    with tracker:
        view = given.view(16, 16)
        total = given.sum()
    assert tracker.peak == 4
    del view, total, given
    assert tracker.live == 0


def test_several_outputs_are_counted_apart() -> None:
    tracker = PeakTracker()
    with tracker:
        values, indices = torch.ones(8, 4).max(1)
    assert tracker.peak == 128 + 32 + 64
    del indices
    assert tracker.live == 32
    del values
