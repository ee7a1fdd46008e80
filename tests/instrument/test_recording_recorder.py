"""Tests of `echo.instrument.recording`: storage counter; meters; recorder."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import Estimator

from echo.callbacks import Recorder
from echo.errors import NativeError, OptionError
from echo.instrument import recording
from echo.instrument.recording import Meters, StorageCounter
from echo.instrument.windows import RowFile, read_rows, summary
from echo.verify import storage
from tests.instrument.test_energy import Nvml, zone

MB = 2**20
ROOT = Path(__file__).resolve().parents[2]


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something holds within a while: MXNet's engine frees an array when its turn comes, after `waitall`."""
    for _ in range(2000):
        if holds():
            return True
        time.sleep(0.01)
    return False


def alone(function: Callable[[], None]) -> None:
    """Runs a function of this module in a process of its own."""
    program = f"import {__name__} as tests\ntests.{function.__name__}()\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{inspect.getsource(function)}\n{done.stderr}"


def array(megabytes: int) -> mx.nd.NDArray:
    made = mx.nd.zeros((megabytes, MB // 4))
    mx.nd.waitall()
    return made


def test_the_most_since_the_last_call() -> None:
    alone(most_since_the_last_call)


def most_since_the_last_call() -> None:
    counter = StorageCounter()
    try:
        kept = array(3)
        assert 3 * MB <= counter.most() < 4 * MB
        passing = array(8)
        assert 11 * MB <= counter.most() < 12 * MB
        del passing
        assert eventually(lambda: 3 * MB <= counter.most() < 4 * MB)
        with pytest.raises(LookupError, match="another counter is active"):
            StorageCounter()
        del kept
        assert eventually(lambda: counter.most() < MB)
    finally:
        counter.close()
    again = StorageCounter()
    assert again.most() == 0
    again.close()


@pytest.mark.slow
def test_verify_counts_meanwhile() -> None:
    alone(verify_counts_meanwhile)


def verify_counts_meanwhile() -> None:
    counter = StorageCounter()
    try:
        kept = array(2)
        most, _ = storage.peak_storage(lambda: array(5).asnumpy(), mx.cpu())
        assert 5 * MB <= most < 6 * MB
        assert 7 * MB <= counter.most() < 8 * MB, "it goes on after it"
        assert eventually(lambda: 2 * MB <= counter.most() < 3 * MB)
        passing = array(4)
        assert 6 * MB <= counter.most() < 7 * MB
        del kept, passing
    finally:
        counter.close()
    most, _ = storage.peak_storage(lambda: array(5).asnumpy(), mx.cpu())
    assert 5 * MB <= most < 6 * MB


def test_uncountable_storage_raises_lookup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "counting_blocker", lambda: "MXNet's storage is not where it is expected")
    with pytest.raises(LookupError, match="MXNet's storage: MXNet's storage is not where"):
        StorageCounter()
    monkeypatch.setattr(storage, "counting_blocker", lambda: "")

    def missing() -> None:
        raise NativeError("the hook is missing")

    monkeypatch.setattr("echo.native.hook_library", missing)
    with pytest.raises(LookupError, match="the hook is missing"):
        StorageCounter()


def test_arrays_on_gpus_come_before_those_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held_bytes = {0: 5, 1: 0}
    counter = StorageCounter()
    try:
        monkeypatch.setattr(counter, "_most", held_bytes.__getitem__)
        assert counter.most() == 5
        held_bytes[1] = 3
        assert counter.most() == 3
    finally:
        counter.close()


class Features:
    """MXNet's list of its features, with CUDA."""

    def is_enabled(self, name: str) -> bool:
        return name == "CUDA"


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.runtime, "Features", Features)
    monkeypatch.setattr(recording, "bus_ids", lambda: ("0000:02:00.0",))


def test_meters_on_a_cpu_read_process_and_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    monkeypatch.setattr(recording, "Rapl", lambda: meters_rapl(tmp_path))
    found = Meters()
    try:
        assert found.missing == []
        reading = found.read()
        assert reading.process > 2**20
        assert reading.storage == 0
        assert (reading.device, reading.gpu_joules, reading.cpu_joules) == (None, None, 0.0)
    finally:
        found.close()


def meters_rapl(folder: Path) -> Any:
    from echo.instrument.energy import Rapl

    return Rapl(folder)


@pytest.mark.usefixtures("_gpu")
def test_meters_on_a_gpu_read_device_and_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = Meters()
    reading = found.read()
    found.close()
    assert (reading.device, reading.gpu_joules) == (4, 5.0)
    assert reading.storage == 0, "nothing was allocated since"
    assert not nvml.open


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(("nvml", "said"), [
    (Nvml("init"), "NVML does not answer: Not Supported"), (None, "pip install nvidia-ml-py"),
    (Nvml("energy", "power"), "GPU energy: NVML says neither energy nor power"),
], ids=["no driver", "no module", "no energy"])  # fmt: skip
def test_missing_meter_is_named(nvml: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = Meters()
    found.close()
    assert [line for line in found.missing if said in line]
    assert found.read().gpu_joules is None


@pytest.mark.usefixtures("_gpu")
def test_no_device_is_nothing_to_speak_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "bus_ids", tuple)
    found = Meters()
    found.close()
    assert [line for line in found.missing if "GPU" in line] == []


def module_fit(recorder: Recorder, epochs: int) -> None:
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4), name="softmax")
    data = mx.io.NDArrayIter(np.zeros((28, 6), "f"), np.zeros(28), 4)
    mx.mod.Module(symbol).fit(data, num_epoch=epochs, batch_end_callback=[recorder])


def test_recorder_as_batch_end_callback_ends_windows_with_epochs(tmp_path: Path) -> None:
    """Seven steps an epoch; the first one of each only begins a window, and no window goes beyond an epoch."""
    recorder = Recorder(tmp_path / "run.csv", every=3, warmup=4)
    module_fit(recorder, epochs=2)
    assert [(row.step, row.steps, row.samples, row.warmup) for row in recorder.rows] == [
        (4, 3, 12, True), (7, 3, 12, False), (11, 3, 12, False), (14, 3, 12, False),
    ]  # fmt: skip
    assert [row.step for row in read_rows(tmp_path / "run.csv")] == [4, 7, 11, 14], "while it is still open"
    recorder.close()
    value = json.loads((tmp_path / "run.json").read_text())
    assert value["summary"] == recorder.summary() == summary(recorder.rows)
    assert value["rows"]["samples"] == [12] * 4
    assert value["missing"] == list(recorder.missing)
    recorder.close()
    recorder.step(4)
    assert len(recorder.rows) == 4, "it is closed"


def loop(recorder: Recorder, steps: int) -> None:
    net = gluon.nn.Dense(4)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for _ in range(steps):
        with autograd.record():
            loss = net(mx.nd.ones((5, 6)))
        loss.backward()
        trainer.step(5)
        recorder.step(5)


def test_recorder_in_a_plain_loop_records_every_step(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.csv", every=4, warmup=0) as recorder:
        loop(recorder, 10)
    assert [(row.step, row.steps, row.samples) for row in recorder.rows] == [(4, 4, 20), (8, 4, 20), (10, 2, 10)]
    assert all(row.process > 2**20 and row.storage for row in recorder.rows)
    assert recorder.path == tmp_path / "run.csv"
    assert recorder.summary()["samples"] == 50


def test_recorder_takes_no_file_or_an_open_one(tmp_path: Path) -> None:
    with Recorder(every=2) as recorder:
        loop(recorder, 4)
    assert (len(recorder.rows), recorder.path) == (2, None)
    with Recorder(RowFile(tmp_path / "own.csv"), every=2) as recorder:
        loop(recorder, 4)
    assert len(read_rows(tmp_path / "own.csv")) == 2


def test_recorder_as_event_handler_leaves_out_evaluations(tmp_path: Path) -> None:
    """An evaluation after each epoch is in no window."""
    net = gluon.nn.Dense(4)
    net.initialize()
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(np.zeros((20, 6), "f"), np.zeros(20, "f")), batch_size=5)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    estimator = Estimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy(), trainer=trainer)
    recorder = Recorder(tmp_path / "run.csv", every=3, warmup=0)
    estimator.fit(data, val_data=data, epochs=2, event_handlers=[recorder])
    assert [(row.step, row.steps, row.samples) for row in recorder.rows] == [
        (3, 3, 15),
        (4, 1, 5),
        (7, 3, 15),
        (8, 1, 5),
    ]
    assert (tmp_path / "run.json").exists()


def test_mxnets_batch_axis_counts() -> None:
    batch = SimpleNamespace(data=[mx.nd.zeros((7, 3))])
    names: dict[str, Any] = {"data_batch": batch, "end_of_batch": False}
    with Recorder(every=1, warmup=0) as recorder:
        for layout in ("NC", "TN"):
            names["self"] = SimpleNamespace(data_shapes=[mx.io.DataDesc("data", (7, 3), layout=layout)])
            recorder(SimpleNamespace(nbatch=1, locals=names))
        with pytest.raises(OptionError, match="expected what Module"):
            recorder(SimpleNamespace(nbatch=1, locals=None))
    assert [row.samples for row in recorder.rows] == [7, 3]


@pytest.mark.parametrize("given", [{"every": 0}, {"every": 2.5}, {"warmup": -1}, {"warmup": True}], ids=str)
def test_numbers_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(given))}: expected a number of steps"):
        Recorder(**given)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*nowhere"):
        Recorder(tmp_path / "nowhere" / "run.csv")


@pytest.mark.every(2)
@pytest.mark.parametrize(("end", "sums"), [("raise KeyboardInterrupt", True), ("os.kill(os.getpid(), 9)", False)])
def test_interrupted_recording_keeps_its_rows(end: str, sums: bool, tmp_path: Path) -> None:
    script = (
        "import os\nfrom echo.callbacks import Recorder\nimport mxnet as mx\n"
        "recorder = Recorder('run.csv', every=2, warmup=0)\n"
        f"for i in range(8):\n    recorder.step(1)\n    if i == 5:\n        {end}\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, env={**os.environ}, timeout=120,
                   capture_output=True, check=False)  # fmt: skip
    rows = read_rows(tmp_path / "run.csv")
    assert [row.step for row in rows] == ([3, 5, 6] if sums else [3, 5])
    assert (tmp_path / "run.json").exists() is sums


def test_a_full_disk_costs_one_line_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with Recorder(tmp_path / "run.csv", every=2) as recorder:
        recorder.step(1)
        monkeypatch.setattr(RowFile, "add", full)
        for _ in range(5):
            recorder.step(1)
    assert [row.step for row in recorder.rows] == [2, 4, 6]
    said = [record.getMessage() for record in caplog.records if "recording" in record.getMessage()]
    assert said == ["echo: nothing more is written of the recording: [Errno 28] No space left on device"]


def test_missing_meter_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> None:
        raise LookupError("CPU energy: this user may not read it; to allow it: sudo chmod")

    monkeypatch.setattr("echo.instrument.recording.Rapl", refused)
    for _ in range(2):
        with Recorder() as recorder:
            assert any("to allow it: sudo chmod" in line for line in recorder.missing)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("to allow it: sudo chmod" in line for line in lines) == 1
