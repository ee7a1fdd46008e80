"""Each space that operators draw from holds the largest workspace in the end."""

from __future__ import annotations

from echo.passes.fuse import CountWorkspaces, Workspaces
from echo.passes.pass_manager import run
from echo.passes.request import Request
from echo.plans.options import Options
from tests.estimators.test_footprint import graph, norm
from tests.support.fake_frontend import FakeFramework


def count(framework: FakeFramework) -> Workspaces:
    request = Request(None, Options(), framework)  # type: ignore[arg-type]
    found: Workspaces = run((CountWorkspaces(),), [request], print)[Workspaces]
    return found


def test_operators_draw_one_after_the_other() -> None:
    large, small = graph(*norm(0, 64)), graph(*norm(0, 8))
    both = graph(*norm(0, 64), *norm(4, 8))
    assert count(FakeFramework(both)).bytes == count(FakeFramework(large)).bytes > count(FakeFramework(small)).bytes > 0
    assert count(FakeFramework(both, workspace_slots=4)).bytes == 4 * count(FakeFramework(both)).bytes


def test_graphs_without_fused_operators_draw_nothing_that_is_known() -> None:
    assert count(FakeFramework(graph(*norm(0, 8)[:3]))).bytes == 0
