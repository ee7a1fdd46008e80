"""Texts and pages of plans: the memory over the step is the replay's, and charts are drawn."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.report.usage import PLANNED, STOCK  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch.decisions import ScheduleView  # noqa: E402
from echo.torch.plan import GraphPlan  # noqa: E402
from echo.torch.planner import frontier, plan_graph  # noqa: E402
from echo.torch.report import PlanReport, usage_of  # noqa: E402
from tests.support.torch_models import built, traced  # noqa: E402


def plan_of(name: str, share: float) -> GraphPlan:
    model, inputs = built(name)
    joint = traced(model, *inputs).joint
    seconds = [0.0 if node.is_variable else 1e-3 for node in joint.training.nodes]
    return plan_graph(joint, seconds, memory_budget=share, deadline=Deadline.after(60))


def report_of(plan: GraphPlan) -> PlanReport:
    return PlanReport(str(plan), ScheduleView(plan.graph, plan.schedule))


@pytest.mark.parametrize("name", ["gpt", "translation", "resnet"])
def test_memory_over_the_step_has_the_peaks_of_the_plan(name: str) -> None:
    plan = plan_of(name, 0.75)
    usages = report_of(plan).usages
    assert usages[STOCK].live_peak == plan.stock_bytes > usages[PLANNED].live_peak == plan.peak_bytes
    assert len(usages[PLANNED].steps) == len(usages[STOCK].steps) + sum(count for _, count in plan.recomputed)
    assert sum(usages[PLANNED].by_kind.values()) == plan.peak_bytes
    made = {(tensor.name, tensor.kind) for tensor in usages[PLANNED].tensors}
    assert all((name, "recomputed maps") in made for name, _ in plan.recomputed)


def test_freed_bytes_are_the_growth_of_the_peak_if_saved() -> None:
    plan = plan_of("gpt", 0.6)
    rows = report_of(plan).again(1000)
    assert sum(row.nodes for row in rows) == len(plan.recomputed)
    assert sum(row.seconds for row in rows) == pytest.approx(plan.recompute_seconds)
    (largest, *_) = rows
    nodes = [
        number
        for number in plan.schedule
        if plan.graph.training.nodes[number].op == largest.op
        and sum(one.bytes for one in plan.graph.training.nodes[number].outputs) * largest.nodes == largest.bytes
    ]
    changed = {number: at for number, at in plan.schedule.items() if number not in nodes}
    assert usage_of(ScheduleView(plan.graph, changed)).live_peak - plan.peak_bytes == largest.freed > 0


def test_text_has_the_values_at_both_peaks() -> None:
    plan = plan_of("gpt", 0.6)
    state = random.getstate()
    text = report_of(plan).text()
    assert random.getstate() == state
    assert text.startswith(str(plan))
    for heading in ("memory (MB)", "stock: alive at the peak", "echo: alive at the peak", "runs again", "saved for"):
        assert heading in text
    assert f"{plan.stock_bytes / 1e6:.3f}" in text
    assert f"{plan.peak_bytes / 1e6:.3f}" in text
    assert "blocks.0.up" in text
    assert max(map(len, text.splitlines())) <= 120
    assert "runs again ┃" not in report_of(plan_of("gpt", 1.0)).text()


def test_page_is_one_file_whose_charts_are_drawn(tmp_path: Path) -> None:
    convert = pytest.importorskip("vl_convert", reason="needs the extra report")
    plan = plan_of("gpt", 0.6)
    path = tmp_path / "plan.html"
    plan.page(path, "<gpt>")
    page = path.read_text(encoding="utf-8")
    assert "<title>&lt;gpt&gt;: where the memory goes</title>" in page
    assert "MXNet" not in page
    assert re.search(r'(src|href)="http', page) is None
    charts = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    assert list(charts) == ["timeline", "kinds", "layers-stock", "layers-echo"]
    assert all(f'id="{name}"' in page for name in charts)
    svg = convert.vegalite_to_svg(charts["timeline"])
    assert f"stock: {plan.stock_bytes / 1e6:,.1f} MB" in svg
    assert f"echo: {plan.peak_bytes / 1e6:,.1f} MB" in svg
    assert "<path" in convert.vega_to_svg(charts["layers-echo"])
    assert all(f"<td>{name}</td>" in page for name, _ in plan.recomputed)
    assert 'id="frontier"' not in page
    plan.page(path, frontier=frontier(plan, 4))
    page = path.read_text(encoding="utf-8")
    charts = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    assert 'id="frontier"' in page
    assert "MB alive at the peak" in convert.vegalite_to_svg(charts["frontier"])
