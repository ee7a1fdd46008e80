"""The snapshot: plain values, allocations that are freed once, and a peak that is that of the profile."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

from echo.report import torch_snapshot
from tests.report.profiles import made_up


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
    torch_snapshot.save(profile, path)
    snapshot = pickle.loads(path.read_bytes())
    for usage, events, segment in zip(profile.usages.values(), snapshot["device_traces"], snapshot["segments"]):
        given = sum(tensor.bytes for tensor in usage.tensors if tensor.first < 0)
        assert peak(events) == usage.live_peak + given
        assert segment["requested_size"] == given
        times = [event["time_us"] for event in events]
        assert times == sorted(times)


def test_nothing_is_imported_to_read_it(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    torch_snapshot.save(made_up(5), path)
    names = {operation.name for operation, _, _ in pickletools.genops(path.read_bytes())}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ"}


def test_addresses_never_overlap() -> None:
    snapshot = torch_snapshot.snapshot(made_up(30))
    for events in snapshot["device_traces"]:
        places = sorted((event["addr"], event["size"]) for event in events if event["action"] == "alloc")
        assert all(start + size <= after for (start, size), (after, _) in zip(places, places[1:]))
