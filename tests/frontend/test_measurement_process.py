"""The process that measures: what happens in it stays in it, whatever becomes of it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import pytest

import echo
from echo.estimators.cost_model import LateError, UnavailableError, UnmeasurableError
from echo.estimators.cost_table import CostTable
from echo.frontend import measure, measurement_process
from echo.frontend.framework import MxnetFramework
from echo.frontend.measurement_process import ask, measuring
from echo.frontend.plan_key import device_key
from echo.meter.capi import Microbenchmark, Variable
from echo.planning.planner import Planner
from echo.runtime import bind_plan

INT32 = 4
FINE = Microbenchmark("tanh", {}, (Variable((8, 8)),))
# integers below one: MXNet's division by zero ends the process that divides
DEADLY = Microbenchmark("broadcast_div", {}, (Variable((8,), INT32), Variable((8,), INT32, False, 1)))


def request(microbenchmark: Microbenchmark) -> dict[str, Any]:
    return {"microbenchmark": microbenchmark._asdict(), "once": None}


def seconds(microbenchmark: Microbenchmark = FINE) -> float:
    return float(ask(mx.cpu(), request(microbenchmark))["seconds"])


def pid() -> int:
    return int(measurement_process._PROCESS.value._running._pid)


def test_one_process_answers_until_measuring_ends() -> None:
    with measuring():
        assert measurement_process._PROCESS.value._running is None  # nothing was requested yet
        assert seconds() > 0
        first = pid()
        with measuring():
            assert seconds() > 0
        assert seconds() > 0
        assert pid() == first
        assert os.getsid(first) == first != os.getsid(0)  # no signal from the terminal reaches it
    with pytest.raises(ChildProcessError):
        os.waitpid(first, os.WNOHANG)
    assert seconds() > 0  # one for itself alone
    assert measurement_process._PROCESS.value is None


def test_the_death_of_the_process_is_that_of_one_operator() -> None:
    with measuring():
        assert seconds() > 0
        for _ in range(measurement_process._MOST_DEATHS_OF_ONE):
            with pytest.raises(UnmeasurableError, match=f"ended by signal {signal.SIGFPE.value}"):
                seconds(DEADLY)
            assert seconds() > 0
        last = pid()
        with pytest.raises(UnmeasurableError, match="the processes that measured it ended"):
            seconds(DEADLY)
        assert pid() == last
        assert seconds() > 0


def test_no_process_is_started_after_the_deaths_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement_process, "_MOST_DEATHS", 1)
    with measuring():
        with pytest.raises(UnmeasurableError, match="ended by signal"):
            seconds(DEADLY)
        with pytest.raises(UnavailableError, match="no more are started"):
            seconds()
    assert seconds() > 0  # the next planning tries again


def test_a_process_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with measuring():
        assert seconds() > 0
        stopped = pid()
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(measurement_process, "_PATIENCE", 0.1)
        with pytest.raises(LateError, match="no answer in time"):
            seconds()
        with pytest.raises(ChildProcessError):
            os.waitpid(stopped, os.WNOHANG)


@pytest.mark.parametrize("reply", [b"nonsense\n", b"[]\n", b'{"seconds": -1}\n', b'{"seconds": "1"}\n', b""])
def test_malformed_reply_raises_unmeasurable_error(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(_: float, action: Callable[[], Any]) -> Any:
        return None if action() is None else reply  # what is sent is sent

    with measuring():
        assert seconds() > 0
        monkeypatch.setattr(measurement_process._PROCESS.value._running, "_within", another)
        with pytest.raises(UnmeasurableError):
            measure._seconds(ask(mx.cpu(), request(FINE)), "seconds")


def integers() -> tuple[mx.sym.Symbol, dict[str, Any]]:
    """As masks of GluonNLP's models: integers are divided by lengths."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, flatten=False, name="fc")
    steps = mx.sym.cast(mx.sym.floor(mx.sym.abs(mx.sym.sum(mx.sym.BlockGrad(hidden), axis=(1, 2)))), "int32") + 1
    index = mx.sym.broadcast_div(steps, mx.sym.cast(mx.sym.var("length"), "int32"))
    scale = mx.sym.reshape(mx.sym.cast(index, "float32"), shape=(-1, 1, 1))
    hidden = mx.sym.broadcast_mul(mx.sym.tanh(mx.sym.exp(mx.sym.sigmoid(hidden))), scale)
    hidden = mx.sym.LeakyReLU(mx.sym.FullyConnected(hidden, num_hidden=32, flatten=False, name="up"), act_type="gelu")
    loss = mx.sym.MakeLoss(mx.sym.mean(mx.sym.FullyConnected(hidden, num_hidden=8, name="out")))
    return loss, {"data": (48, 20, 32), "length": (1,)}


def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[echo.Plan, CostTable]:
    """A plan from nothing but the cost table, and that."""
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    for file in (tmp_path / "plans").glob("*"):
        file.unlink()
    with mx.name.NameManager():
        symbol, shapes = integers()
    plan = echo.plan(symbol, **shapes)
    return plan, CostTable(device_key(mx.cpu()))


@pytest.fixture
def deadly_divisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Integers are measured as zeros, as if an operator were one that no input suits. Returns what was asked for."""
    asked: list[str] = []
    original = measure.microbenchmark_of

    def microbenchmark_of(*given: Any) -> tuple[Microbenchmark, float]:
        microbenchmark, scale = original(*given)
        asked.append(microbenchmark.op)
        zeros = tuple(item._replace(below=1) if isinstance(item, Variable) and item.flag == INT32 else item
                      for item in microbenchmark.inputs)  # fmt: skip
        return microbenchmark._replace(inputs=zeros), scale

    monkeypatch.setattr(measure, "microbenchmark_of", microbenchmark_of)
    # every operator is worth it: a fast machine, on which all of them take about as long
    monkeypatch.setattr("echo.estimators.cost_table.BYTES_PER_SECOND", 1e30)
    monkeypatch.setattr("echo.estimators.cost_table.FLOPS_PER_SECOND", 1e30)
    estimate = MxnetFramework.costs
    monkeypatch.setattr(MxnetFramework, "costs", lambda session, training, *_: estimate(session, training, 60.0, 60.0))
    return asked


@pytest.mark.usefixtures("measures")
def test_an_operator_that_ends_the_process_is_estimated_from_then_on(
    deadly_divisions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, table = planned(tmp_path, monkeypatch)
    assert not plan.changes_nothing
    assert deadly_divisions.count("broadcast_div") == 1
    refused = [key for key in table._kept.seconds if key.startswith("broadcast_div(int32")]
    assert refused
    assert all(table.get(key) is None for key in refused)
    assert any(table.get(key) for key in table._kept.seconds)
    deadly_divisions.clear()
    # what other programs disturbed would be measured better now, and its seconds would differ
    monkeypatch.setattr(CostTable, "is_provisional", lambda *_: False)
    again, _ = planned(tmp_path, monkeypatch)
    assert "broadcast_div" not in deadly_divisions
    assert again.decisions == plan.decisions


@pytest.mark.usefixtures("measures")
def test_refused_process_leaves_everything_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any, **__: Any) -> int:
        raise PermissionError("no processes here")

    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG, "echo"):
        patch.setattr(os, "posix_spawn", refused)
        plan, table = planned(tmp_path, patch)
        assert not plan.changes_nothing
        assert len(table) == 0  # what could not be tried is tried the next time
        planned(tmp_path, patch)
    lines = [record.getMessage() for record in caplog.records if "not measured" in record.getMessage()]
    assert len(lines) == 1
    assert "no processes here" in lines[0]
    _, table = planned(tmp_path, monkeypatch)
    assert len(table) > 0


@pytest.mark.parametrize("executable", ["", "/usr/sbin/uwsgi", "/no/such/python3", None])
def test_a_program_that_embeds_python_is_not_started_again(executable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "_base_executable", executable)
    monkeypatch.setattr(sys, "exec_prefix", "/nowhere")
    assert (
        measurement_process.interpreter()
        == f"{sys.base_exec_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    )
    monkeypatch.setattr(sys, "base_exec_prefix", "/nowhere")
    with pytest.raises(UnavailableError, match="no Python found"):
        seconds()


def test_the_process_gets_no_setting_that_is_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ECHO", "ECHO_STRICT", "PYTHONPATH", "DMLC_ROLE", "MXNET_PROFILER_AUTOSTART", "MXNET_ENFORCE_CUDA"):
        monkeypatch.setenv(name, "1")
    spawn, given = os.posix_spawn, {}

    def watched(path: str, arguments: Any, environment: Any, **more: Any) -> int:
        given.update(environment)
        return spawn(path, arguments, environment, **more)

    monkeypatch.setattr(os, "posix_spawn", watched)
    assert seconds() > 0
    assert given["MXNET_ENFORCE_CUDA"] == "1"
    assert given["PATH"] == os.environ["PATH"]
    assert not [name for name in given if name.startswith(("ECHO", "PYTHON", "DMLC", "MXNET_PROF"))]


def test_threads_measure_side_by_side() -> None:
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(seconds())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert min(found) > 0


def run(code: str, tmp_path: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300, check=False,
        env={**clean, "ECHO_CACHE_DIR": str(tmp_path)}, **more,
    )  # fmt: skip


HEAD = """
import os, signal, sys
import mxnet as mx
from echo.frontend import measurement_process
FINE = {"microbenchmark": {"op": "tanh", "attrs": {}, "inputs": [[[8, 8]]], "outputs": [0], "forward": "",
                  "forward_inputs": [],
                  "hot": True, "heavy": False, "bytes": 512}, "once": None}
"""


def ended(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def within(limit: float, condition: Callable[[], bool]) -> bool:
    for _ in range(int(limit / 0.02)):
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_worker_exits_with_parent(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
with measurement_process.measuring():
    measurement_process.ask(mx.cpu(), FINE)
    print(measurement_process._PROCESS.value._running._pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    done = run(code, tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert within(30, lambda: ended(int(done.stdout)))


@pytest.mark.every(5)
@pytest.mark.parametrize("before", [
    "for number in (0, 1, 2): os.close(number)",
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))",
    "signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "os.chdir('/')",
    "import socket; socket.setdefaulttimeout(30)",
    "import socket; socket.setdefaulttimeout(0)",
])  # fmt: skip
def test_measuring_survives_closed_files_signal_handlers_and_time_outs(before: str, tmp_path: Path) -> None:
    code = (
        HEAD
        + f"""
{before}
good = []
for _ in range(2):
    with measurement_process.measuring():
        good.append(measurement_process.ask(mx.cpu(), FINE)["seconds"] > 0)
        number = measurement_process._PROCESS.value._running._pid
        os.kill(number, signal.SIGKILL)
        try:
            measurement_process.ask(mx.cpu(), FINE)
        except measurement_process.UnmeasurableError:
            good.append(True)
        good.append(measurement_process.ask(mx.cpu(), FINE)["seconds"] > 0)
os._exit(0 if good == [True] * 6 else 1)
"""
    )
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
