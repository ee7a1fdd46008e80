"""The lines on the peak of the process, in a training of one's own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

from echo.estimators.footprint import HELD, OUTSIDE, OWN, STATES
from echo.ir.training_graph import Runner
from echo.report.predicted_peaks import NO_GPU
from echo.runtime import peak_prediction
from echo.runtime.peak_prediction import PeakPrediction
from tests.plans.test_plan import PLAN_KEY, plan

MB = 10**6
ROOT = Path(__file__).resolve().parents[2]


class Updater:
    """What an optimizer's updater shows of itself."""

    def __init__(self) -> None:
        self.states = {0: mx.nd.zeros((1000,)), 1: (mx.nd.zeros((500,)), None)}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The lines of Linux's status file."""
    lines = {"VmRSS": 200 * MB, "VmHWM": 210 * MB}
    monkeypatch.setattr(peak_prediction, "resident", lines.__getitem__)
    return lines


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> PeakPrediction:
    """One that stands in for nothing, and logs nothing at the end of this process."""
    found = PeakPrediction()
    found._watches = True
    return found


def block(planned: int = 300 * MB, runner: str = Runner.STATIC, device: str = "cpu") -> Any:
    given = plan(key=replace(PLAN_KEY, runner=runner), device=device)
    return replace(given, before=replace(given.before, planned=planned))


def test_prediction_waits_for_the_second_update(
    watched: PeakPrediction, process: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    updater, given = Updater(), block()
    with caplog.at_level(logging.INFO, "echo"):
        watched.planned(given)
        watched.returned(given, [mx.nd.zeros((1000, 1000))])
        watched.updates(updater, 0)
        watched.updates(updater, 1)
        assert watched.found is None
        watched.updates(updater, 0)
    assert watched.found is not None
    assert watched.found.echo.parts[HELD] + watched.found.echo.parts[OWN] == 200 * MB
    assert watched.found.echo.parts[STATES] == 6000
    assert watched.found.echo.parts[OUTSIDE] == 12 * MB
    assert caplog.messages == [f"echo: peak of the process, predicted: {watched.found}"]
    process["VmHWM"] = 400 * MB
    with caplog.at_level(logging.INFO, "echo"):
        watched.log()
    total = f"{watched.found.echo.total / MB:.0f}"
    assert caplog.messages[1:] == [f"echo: peak of the process: 400 MB, predicted {total} MB"]


def test_updates_of_another_trainer_end_no_step(watched: PeakPrediction, process: dict[str, int]) -> None:
    watched.planned(block())
    first, second = Updater(), Updater()
    for updater in (first, second, second):
        watched.updates(updater, [0, 1])
    assert watched.found is None
    watched.updates(first, [0, 1])
    assert watched.found is not None


def test_one_step_is_predicted_at_the_end(watched: PeakPrediction, process: dict[str, int]) -> None:
    watched.planned(block())
    watched.updates(Updater(), [0, 1])
    watched.log()
    assert watched.found is not None


def test_graph_twice_as_large_has_a_line_of_its_own(watched: PeakPrediction, process: dict[str, int]) -> None:
    updater, totals = Updater(), []
    for planned in (100, 150, 20, 400):
        watched.planned(block(planned * MB))
        watched.updates(updater, 0)
        watched.updates(updater, 0)
        assert watched.found is not None
        totals.append(watched.found.stock.total)
    assert totals[0] == totals[1] == totals[2] == totals[3] - 300 * MB


def test_executor_holds_its_arrays_once_it_trains(watched: PeakPrediction, process: dict[str, int]) -> None:
    watched.planned(block(runner="executor"))
    process["VmRSS"] = 260 * MB
    watched.begins()
    process["VmRSS"] = 500 * MB
    watched.begins()
    assert (watched._process.held, watched._process.to_come) == (260 * MB, False)


def test_mark_that_was_reset_does_not_hide_the_peak(
    watched: PeakPrediction, process: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    watched.planned(block(runner=Runner.DYNAMIC))
    watched.updates(Updater(), 0)
    watched.see(900 * MB)
    with caplog.at_level(logging.INFO, "echo"):
        watched.log()
    assert "peak of the process: 900 MB" in caplog.messages[-1]


@pytest.mark.parametrize("missing", ["gpu", "no proc"])
def test_unpredictable_peak_has_no_line(
    watched: PeakPrediction, process: dict[str, int], caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    if missing == "no proc":
        process.update(VmRSS=0, VmHWM=0)
    with caplog.at_level(logging.INFO, "echo"):
        watched.planned(block(device="gpu" if missing == "gpu" else "cpu"))
        watched.updates(Updater(), 0)
        watched.updates(Updater(), 0)
        watched.log()
    assert watched.found is None
    assert caplog.messages == ([f"echo: {NO_GPU}"] if missing == "gpu" else [])


def test_prediction_that_fails_costs_a_warning_and_the_weights_are_updated(
    watched: PeakPrediction, process: dict[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("no such part")

    monkeypatch.setattr(peak_prediction, "predict_peaks", fails)
    watched.planned(block())
    updated: list[Any] = []
    update = watched._watched(lambda updater, index, grad, weight: updated.append(index))
    updater = Updater()
    for _ in range(3):
        update(updater, 0, None, None)
    assert updated == [0, 0, 0]
    (warning,) = caplog.messages
    assert warning.startswith("echo: the peak of the process is not predicted: ")
    watched.log()  # as at the end of the program


def test_outputs_of_the_numpy_interface_are_counted(
    watched: PeakPrediction, process: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    for given, output in ((block(), mx.np.zeros((1000, 1000))), (block(700 * MB), [mx.np.zeros(7), mx.nd.zeros(7)])):
        watched.planned(given)
        watched.returned(given, output)
    assert caplog.messages == []
    assert watched._process.outputs == 2 * 7 * 4
    assert peak_prediction._bytes((mx.np.zeros(3), mx.np.zeros(3, dtype="int8"), mx.nd.zeros(3, dtype="float64"))) == 39


def test_outputs_that_cannot_be_counted_cost_a_warning(
    watched: PeakPrediction, process: dict[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> int:
        raise TypeError("no array")

    monkeypatch.setattr(peak_prediction, "_bytes", fails)
    given = block()
    watched.planned(given)
    watched.returned(given, mx.nd.zeros(7))
    (warning,) = caplog.messages
    assert warning == "echo: the peak of the process is not predicted: TypeError: no array"


_TRAINING = """
import json, sys
import mxnet as mx
from mxnet import autograd, gluon
net = gluon.nn.HybridSequential()
for _ in range(6):
    net.add(gluon.nn.Dense(1024, activation="tanh", in_units=1024))
net.initialize()
net.hybridize(static_alloc=True)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
data = mx.nd.ones((2048, 1024))
for _ in range(4):
    with autograd.record():
        loss = net(data).mean()
    loss.backward()
    trainer.step(1)
    mx.nd.waitall()
from echo.system.process import resident
found = None
if len(sys.argv) > 1:
    from echo.runtime.peak_prediction import PEAK_PREDICTION
    found = PEAK_PREDICTION.found.to_json()
print(json.dumps([resident("VmHWM"), found]))
"""


@pytest.mark.slow
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's memory is resident, too")
def test_predicted_peaks_are_within_a_tenth_of_what_a_process_takes(tmp_path: Path) -> None:
    """Both peaks that a training with echo predicts, against those of two processes (CONTRIBUTING: the oracle)."""
    seen, predictions = {}, {}
    for name, words in (("stock", []), ("echo", ["echo"])):
        variables = {
            **os.environ,
            "ECHO": "1" if words else "0",
            "ECHO_CACHE_DIR": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-c", _TRAINING, *words]
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True)
        seen[name], found = json.loads(done.stdout.splitlines()[-1])
        predictions.update(found or {})
    for name, peak in seen.items():
        assert sum(predictions[name].values()) == pytest.approx(peak, rel=0.1), (name, predictions)
    assert seen["echo"] < seen["stock"]
