"""The benchmark of a busy machine: its summary of plannings, and its programs, which come and go."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from benchmarks import busy_planning
from benchmarks.busy_planning import PLANNED, busy, row


def planning(size: int = 1000, fused: str = "1 x lstm_layer", seconds: float = 3.0, **more: Any) -> dict[str, Any]:
    found = {"seconds": seconds, "bytes": size, "total": size + 1000, "fused": fused, "time": 0.5, "stopped": []}
    return {**found, "load": 3.0, **more}


@pytest.mark.parametrize(
    ("other", "met"),
    [
        (planning(), True),
        (planning(1029), True),
        (planning(1031), False),
        (planning(fused=""), False),
        (planning(seconds=10.1), False),
    ],
)
def test_row_of_plannings_that_differ_too_much_is_not_met(other: dict[str, Any], met: bool) -> None:
    found = row("lm", [planning()], [planning(), other])
    assert found["met"] is met
    assert found["seconds"] == [3.0, other["seconds"]]
    assert found["spread_of_total"] == pytest.approx(found["spread_of_bytes"] / 2)


def test_row_counts_plannings_that_were_stopped() -> None:
    found = row("lm", [planning()], [planning(), planning(stopped=["planning stopped"], load=7.04)])
    assert (found["stopped"], found["load"]) == (1, 7.0)


def test_busy_programs_end_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(busy_planning.subprocess, "Popen", lambda *given: started.append(popen(*given)) or started[-1])
    with busy(2):
        assert [program.poll() for program in started] == [None, None]
    assert len(started) == 2
    assert all(program.returncode for program in started)


@pytest.mark.parametrize("name", ["tft", "resnet18"])
def test_models_have_shapes(name: str) -> None:
    model = PLANNED[name]()
    _, outputs, _ = model.symbol.infer_shape(**model.shapes)
    assert outputs
