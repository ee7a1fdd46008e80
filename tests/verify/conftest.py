"""Fixtures of verification: a folder for its reports, and plans that are wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from echo.ir.graph import Graph
from tests.support.planning import plan_other_graphs


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, where reports are written, is the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wrong_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans whose graphs hold a cosine where the user has a sine: outputs and gradients of another function."""

    def changed(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(replace(one, op="cos") if one.op == "sin" else one for one in graph.nodes))

    plan_other_graphs(monkeypatch, changed)
