"""Tests of `echo.report.export`: trace; torch snapshot."""

from __future__ import annotations

import json
import pickle
import pickletools
from pathlib import Path
from typing import Any

from echo.report import export
from tests.report.profiles import made_up


def test_every_operator_of_every_graph_in_order(tmp_path: Path) -> None:
    profile = made_up(40)
    path = tmp_path / "trace.json"
    export.save_trace(profile, path)
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
    events = export.trace(profile)["traceEvents"]
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
    (first, *_) = [event for event in export.trace(profile)["traceEvents"] if event["ph"] == "X"]
    tensor = profile.usages["stock"].passing[0]
    assert first["args"][tensor.name] == f"{tensor.kind}, {tensor.bytes} bytes, until step {tensor.last}"


def peak(events: list[dict[str, Any]]) -> int:
    """The most bytes alive, by what was allocated and freed."""
    alive: dict[int, int] = {}
    most = 0
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert alive.pop(event["addr"]) == event["size"]
        most = max(most, sum(alive.values()))
    return most


def test_the_peak_is_that_of_the_profile(tmp_path: Path) -> None:
    profile = made_up(50, seed=2)
    path = tmp_path / "snapshot.pickle"
    export.save_torch_snapshot(profile, path)
    snapshot = pickle.loads(path.read_bytes())
    for usage, events, segment in zip(profile.usages.values(), snapshot["device_traces"], snapshot["segments"]):
        given = sum(tensor.bytes for tensor in usage.tensors if tensor.first < 0)
        assert peak(events) == usage.live_peak + given
        assert segment["requested_size"] == given
        times = [event["time_us"] for event in events]
        assert times == sorted(times)


def test_snapshot_loads_without_imports(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    export.save_torch_snapshot(made_up(5), path)
    names = {operation.name for operation, _, _ in pickletools.genops(path.read_bytes())}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ"}


def test_addresses_never_overlap() -> None:
    snapshot = export.snapshot(made_up(30))
    for events in snapshot["device_traces"]:
        places = sorted((event["addr"], event["size"]) for event in events if event["action"] == "alloc")
        assert all(start + size <= after for (start, size), (after, _) in zip(places, places[1:]))
