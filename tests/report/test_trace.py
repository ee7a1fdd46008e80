"""The trace: every operator in its order, and counters that add up to the bytes alive."""

from __future__ import annotations

import json
from pathlib import Path

from echo.report import trace
from tests.report.profiles import made_up


def test_every_operator_of_every_graph_in_order(tmp_path: Path) -> None:
    profile = made_up(40)
    path = tmp_path / "trace.json"
    trace.save(profile, path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    for number, usage in enumerate(profile.usages.values(), 1):
        operators = [event for event in events if event["ph"] == "X" and event["pid"] == number]
        assert [event["name"] for event in operators] == list(usage.steps)
        assert [event["ts"] for event in operators] == sorted(event["ts"] for event in operators)
        assert sum(event["tid"] == 1 for event in operators) == usage.forward_steps
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {1: "stock graph", 2: "echo graph"}


def test_counters_add_up_to_the_bytes_alive() -> None:
    profile = made_up(60, seed=3)
    events = trace.trace(profile)["traceEvents"]
    for number, usage in enumerate(profile.usages.values(), 1):
        counters = {event["ts"]: sum(event["args"].values()) for event in events
                    if event["ph"] == "C" and event["pid"] == number}  # fmt: skip
        assert len(counters) > 10
        now = 0.0
        for step, alive in enumerate(usage.live):
            now = counters.get(step, now)
            assert abs(now - alive / 10**6) < 0.01
        assert abs(counters[len(usage.steps)]) < 0.01  # nothing is left


def test_arrays_stand_at_the_operator_that_writes_them() -> None:
    profile = made_up(10)
    (first, *_) = [event for event in trace.trace(profile)["traceEvents"] if event["ph"] == "X"]
    tensor = profile.usages["stock"].passing[0]
    assert first["args"][tensor.name] == f"{tensor.kind}, {tensor.bytes} bytes, until step {tensor.last}"
