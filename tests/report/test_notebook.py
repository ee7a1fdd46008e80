"""What a notebook shows of profiles, plans and frontiers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from echo.errors import UnsupportedError
from echo.plans.frontier import Frontier
from echo.report import notebook
from tests.report.profiles import made_up, plan_of


def test_a_profile_shows_pictures_and_tables() -> None:
    shown = made_up(20)._repr_html_()
    root = ElementTree.fromstring(f"<body>{shown}</body>")
    assert len(root.findall("div/{http://www.w3.org/2000/svg}svg")) == 2
    (text,) = root.findall("pre")
    assert "at the peak, by kind (MB)" in (text.text or "")


def test_without_the_extra_the_tables_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise UnsupportedError(name)

    monkeypatch.setattr(notebook, "module_of", missing)
    shown = made_up(20)._repr_html_()
    assert shown.startswith("<pre")
    assert "svg" not in shown


def test_plans_and_frontiers_show_their_tables() -> None:
    plan = plan_of()
    for value in (plan, Frontier((plan,), (plan.after.total,))):
        assert ElementTree.fromstring(value._repr_html_()).text == str(value)
