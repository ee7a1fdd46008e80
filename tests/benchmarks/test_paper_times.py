"""Times of the papers' evaluation: steps in turn, and training to a perplexity; no clock is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import record
from benchmarks.models import SMALL
from benchmarks.paper import perplexity, steps
from benchmarks.paper.tables import perplexity_table, steps_table

pytestmark = pytest.mark.usefixtures("cheap_planning")


def test_every_reduced_workload_is_a_published_one() -> None:
    from benchmarks.paper.workloads import WORKLOADS

    assert set(steps.REDUCED) <= set(WORKLOADS)


@pytest.mark.slow
def test_steps_of_all_ways_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setenv("DIRTY", "1")  # of whatever tree these tests run in
    monkeypatch.setattr(steps, "REDUCED", {"nmt": ("small", SMALL["nmt"])})
    monkeypatch.setattr(steps, "measured", lambda model, full=steps.measured: full(model, 3))
    (row,) = steps.run()
    found = row["steps"]
    for name in steps.WAYS:
        assert found[name]["low"] <= found[name]["ratio"] <= found[name]["high"]
        assert found[name]["total"] < found["stock_bytes"]
    assert steps_table({"rows": [row]}).splitlines()[2].startswith("| nmt | small | ")


def test_windows_go_through_the_text_once() -> None:
    ids = np.arange(1001, dtype=np.float32)
    seen = list(perplexity.windows(ids, 4))
    assert all((after == words + 1).all() for words, after in seen)
    found = np.concatenate([words.ravel() for words, _ in seen])
    assert len(set(found)) == len(found) == 4 * (250 // perplexity.STEPS) * perplexity.STEPS


@pytest.mark.slow
def test_every_way_trains_to_the_perplexity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a few words that come again and again it takes some updates."""
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setenv("DIRTY", "1")  # of whatever tree these tests run in
    words = np.tile(np.array([1, 2, 3, 4, 5], np.float32), 200)
    fakes: dict[str, Any] = {"HIDDEN": 8, "STEPS": 5, "BATCH": 4, "RATE": 0.05, "PERPLEXITY": 2.0, "_TURN": 0.02,
                             "text": lambda: (words, words[:100], 6)}  # fmt: skip
    for name, value in fakes.items():
        monkeypatch.setattr(perplexity, name, value)
    (row,) = perplexity.run()
    assert row["batches"]["default"] >= row["batches"]["stock"] == 4
    for name in perplexity.WAYS:
        found = row["training"][name]
        assert found["perplexity"] <= 2
        assert found["updates"] > 1
    assert len(perplexity_table({"rows": [row]}).splitlines()) == 2 + len(perplexity.WAYS)
