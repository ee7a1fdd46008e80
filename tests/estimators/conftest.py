"""Fixtures of the cost model: an empty table of costs, and nodes that are small parts of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo.estimators.cost_table import CostTable


@pytest.fixture
def table(tmp_path: Path) -> CostTable:
    return CostTable("test", tmp_path)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few nodes of a test are small parts of a step, as in a network of many."""
    monkeypatch.setattr("echo.estimators.cost_model._LARGE", 2.0)
