"""Errors that a program's signal handlers or other threads raise while echo plans: they reach the program."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import mxnet as mx
import pytest

import echo
from echo.errors import reraise_interruption
from echo.frontend import measurement_process
from echo.passes.analysis import Differentiate, EstimateCost
from echo.passes.rewrite import Confirm
from echo.passes.select import Select
from echo.policies.problem import Problem
from tests.support.gluon_blocks import BLOCKS, inputs, made, step
from tests.support.small_network import SHAPES, network, trained
from tests.support.training import assert_same

pytestmark = [
    pytest.mark.usefixtures("cheap_planning"),
    pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="needs signals"),
]
_Handler = Callable[..., Any]
ROOT = Path(__file__).parents[2]


class LateError(Exception):
    """A program's own."""


def _late(*_: Any) -> None:
    raise LateError("late")


def _out_of_time(signum: int, frame: Any) -> None:
    raise TimeoutError("late")


class _Handling:
    def __call__(self, signum: int, frame: Any) -> None:
        raise ValueError("late")

    def method(self, signum: int, _frame: Any) -> None:
        self(signum, _frame)


HANDLERS: dict[str, _Handler] = {
    "function": _out_of_time, "any arguments": _late, "partial": functools.partial(_late, 1), "object": _Handling(),
    "method": _Handling().method, "lambda": lambda signum, frame: _late(),
}  # fmt: skip


@pytest.fixture
def handled() -> Iterator[Callable[[_Handler], None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler) and None
    signal.signal(signal.SIGUSR1, before)


def interrupted(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same, but that a signal interrupts at its first call."""
    calls: list[int] = []

    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return original(*arguments, **keywords)

    return wrapper


@pytest.mark.parametrize("stage", [Differentiate, EstimateCost, Select, Confirm])
@pytest.mark.parametrize("kind", HANDLERS)
def test_error_of_a_signal_handler_reaches_the_program(
    stage: Any, kind: str, handled: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handled(HANDLERS[kind])
    monkeypatch.setattr(stage, "run", interrupted(stage.run))
    with caplog.at_level(logging.WARNING, "echo"), pytest.raises((LateError, TimeoutError, ValueError), match="late"):
        trained(echo.optimize(network()), SHAPES, label=10)
    assert not caplog.records


@pytest.mark.parametrize("stage", [Differentiate, Select])
def test_training_goes_on_after_an_interruption_of_transparent_mode(
    stage: Any, handled: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    stock = made(BLOCKS["steps"], False)
    for _ in range(2):
        step(stock, inputs(), expected)
    handled(_late)
    echo.enable(exact=True)
    try:
        planned = made(BLOCKS["steps"], False)
        with monkeypatch.context() as patched:
            patched.setattr(stage, "run", interrupted(stage.run))
            with caplog.at_level(logging.WARNING, "echo"), pytest.raises(LateError):
                step(planned, inputs(), seen)
        for _ in range(2):
            step(planned, inputs(), seen)
    finally:
        echo.disable()
    assert not caplog.records
    assert_same(seen, expected)


@pytest.mark.parametrize("kind", HANDLERS)
def test_waiting_for_measurements_passes_an_interruption_on(
    kind: str, handled: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket's time-out is a TimeoutError, as a handler's may be."""
    handled(HANDLERS[kind])

    class Channel:
        def __init__(self, channel: Any) -> None:
            self._channel = channel
            self.recv = interrupted(channel.recv)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._channel, name)

    start = measurement_process._Running.start

    def started(path: str) -> Any:
        running = start(path)
        running._channel = Channel(running._channel)
        return running

    monkeypatch.setattr(measurement_process._Running, "start", staticmethod(started))
    ask = functools.partial(measurement_process.ask, mx.cpu(), {"microbenchmark": {}})
    with caplog.at_level(logging.WARNING, "echo"), pytest.raises((LateError, TimeoutError, ValueError), match="late"):
        ask()
    assert not caplog.records


SET_BY_A_THREAD = """
import ctypes, logging, sys, threading
import echo
from tests.support.small_network import SHAPES, network

class LateError(Exception):
    pass

def is_planning(frame):
    names = []
    while frame is not None:
        names.append(frame.f_globals["__name__"])
        frame = frame.f_back
    return names[0].startswith("echo.") and "echo.passes.pass_manager" in names

def interrupt(planning):
    while not is_planning(sys._current_frames()[planning]):
        pass
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(planning), ctypes.py_object(LateError))

logging.basicConfig()
threading.Thread(target=interrupt, args=(threading.get_ident(),), daemon=True).start()
try:
    for batch in range(1, 40):
        echo.optimize(network()).simple_bind(echo.runtime.api.mx.cpu(), data=(batch, *SHAPES["data"][1:]))
    print("the error is lost")
except LateError:
    print("late")
"""


def test_error_that_another_thread_sets_reaches_the_program(tmp_path: Path) -> None:
    environment = {**os.environ, "ECHO_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SET_BY_A_THREAD], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "late\n"
    assert "echo:" not in done.stderr


# What is no interruption: errors of functions that echo calls, whoever wrote them.


def test_error_of_a_users_policy_is_no_interruption() -> None:
    def policy(problem: Problem) -> Any:
        raise LateError("mine")

    with pytest.raises(echo.errors.OptionError, match="LateError: mine"):
        echo.plan(network(), policy=policy, **SHAPES)


@pytest.mark.parametrize("error", [LateError("mine"), TimeoutError("mine"), mx.MXNetError("mine"), KeyError("mine")])
def test_error_of_a_function_that_echo_calls_is_no_interruption(error: Exception) -> None:
    def fail() -> None:
        raise error

    try:
        fail()
    except Exception as caught:
        reraise_interruption(caught)


def test_cause_that_is_an_interruption_is_raised(handled: Any) -> None:
    def wrapping() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except OSError as error:
            raise RuntimeError("no answer") from error

    def passing_on() -> None:
        try:
            wrapping()
        except RuntimeError as error:
            reraise_interruption(error)

    handled(_out_of_time)
    with pytest.raises(TimeoutError):
        passing_on()
