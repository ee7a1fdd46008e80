"""A process of its own in which operators are measured (`echo.meter`), and how to talk to it.

It has its own memory, random numbers and signals: what an operator does there does not reach the user's process. It is
spawned, never forked, since MXNet stops and starts its threads around a fork; it gets neither the user's files nor his
terminal, and ends with the planning that started it, or when its socket is closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

import mxnet as mx
import mxnet.libinfo

from echo import meter
from echo.errors import reraise_interruption
from echo.estimators.cost_model import LateError, UnavailableError, UnmeasurableError
from echo.frontend.install import loaded_from
from echo.frontend.mxnet_settings import FUSION_VARIABLE
from echo.kernels.library import cuda_places
from echo.system.threads import ONCE, PerThread

logger = logging.getLogger("echo")
_START_SECONDS = 10.0  # for a process that takes a fifth of a second where the machine has nothing else to do
_PATIENCE = 4.0  # seconds beyond what an answer should take, also where other programs keep the processors busy
_MOST_DEATHS, _MOST_DEATHS_OF_ONE = 6, 2  # in one planning, and over one operator, which is not asked for again then
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
# of the user's environment: what is meant for echo, for Python, for a cluster that the process must not join, and for
# a profiler that would write over the user's file
_NOT_PASSED_ON = ("ECHO", "PYTHON", "DMLC_", "PS_", "MXNET_PROFILER")
_PROCESS: PerThread[_Process | None] = PerThread(None)


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """While this context is open, one process, which starts when needed, makes all measurements of this thread."""
    with _process_of_thread():
        yield


@contextlib.contextmanager
def _process_of_thread() -> Iterator[_Process]:
    """The process for the measurements of this thread; without an outer context, one that ends with this one."""
    with contextlib.closing(_Process()) as another:
        process = _PROCESS.value or another
        with _PROCESS.set_to(process):
            yield process


def ask(ctx: mx.Context, request: Mapping[str, Any], limit: float = 0.0) -> dict[str, Any]:
    """The answer to one request, which should take about ``limit`` seconds.

    Raises:
        UnmeasurableError: the process ended over it, or MXNet refused it, or it took too long.
        UnavailableError: there is no process that could be asked.
    """
    with _process_of_thread() as process:
        try:
            return process.ask(ctx, request, limit + _PATIENCE)
        except UnavailableError as error:
            if ONCE.first(str(error)):
                logger.warning("echo: operators are not measured, their seconds are estimates: %s", error)
            raise


class _Process:
    """The process of one planning: it is started at the first request, and again after it died."""

    def __init__(self) -> None:
        self._running: _Running | None = None
        self._device: tuple[int, int] | None = None
        self._deaths: Counter[str] = Counter()  # by operator
        self._starting = 0.0  # seconds of work that the start took, which the first answer counts
        self._why_not = ""

    def ask(self, ctx: mx.Context, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        op = str(request.get("microbenchmark", {}).get("op", ""))
        if self._deaths[op] >= _MOST_DEATHS_OF_ONE:
            raise UnmeasurableError("the processes that measured it ended")
        running = self._started(ctx)
        try:
            reply = _checked(running.ask({**request, "limit": limit}, limit))
        except (OSError, ValueError) as error:
            reraise_interruption(error)
            self._deaths[op] += 1
            ended = self.close()
            late = isinstance(error, TimeoutError) or ended == _ended_by(signal.SIGALRM)
            kind = LateError if late else UnmeasurableError
            raise kind(f"the process that measured it {ended or error}") from error
        reply["spent"] += self._starting
        self._starting = 0.0
        return reply

    def _started(self, ctx: mx.Context) -> _Running:
        device = _device(ctx)
        if self._running is not None and self._device != device:
            self.close()
        deaths = sum(self._deaths.values())
        if deaths >= _MOST_DEATHS:
            raise UnavailableError(f"{deaths} processes that measured ended over it, no more are started")
        if self._why_not:
            raise UnavailableError(self._why_not)
        if self._running is None:
            try:
                self._running, self._device = _Running.start(interpreter()), device
                self._starting = _spent(self._running.ask(_first_request(device), _START_SECONDS))
            except (OSError, ValueError, NotImplementedError) as error:
                reraise_interruption(error)
                self._why_not = f"no process can be started for it ({self.close() or error})"
                raise UnavailableError(self._why_not) from error
        return self._running

    def close(self) -> str:
        """Ends the process, if there is one, and says how it ended, if it had ended by itself."""
        running, self._running = self._running, None
        return running.end() if running is not None else ""


def _checked(reply: Any) -> dict[str, Any]:
    if not isinstance(reply, dict):
        raise ValueError(f"answered {reply!r}")
    if "error" in reply:
        text = str(reply["error"])
        # there may be more memory the next time
        raise (UnavailableError if "out of memory" in text.lower() else UnmeasurableError)(text)
    return {**reply, "spent": _spent(reply)}


def _spent(reply: Any) -> float:
    """The seconds of work after a reply."""
    spent = reply.get("spent") if isinstance(reply, dict) else None
    if not isinstance(spent, float) or not 0 <= spent < math.inf:
        raise ValueError(f"spent {spent!r}")
    return spent


def _device(ctx: mx.Context) -> tuple[int, int]:
    # on cpu(0) MXNet fuses graphs that train nothing; another number is the same device, and leaves them alone
    return ctx.device_typeid, ctx.device_id + (ctx.device_type == "cpu")


def _first_request(device: tuple[int, int]) -> dict[str, Any]:
    return {
        "library": os.path.abspath(mxnet.libinfo.find_lib_path()[0]),
        "extension": loaded_from(),
        "device": device,
        "numpy_shape": bool(mx.util.is_np_shape()),
    }


def interpreter() -> str:
    """The path of a Python interpreter, which ``sys.executable`` is not in a program that embeds Python.

    Raises:
        OSError: it is not found.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    places = [sys.executable, getattr(sys, "_base_executable", "")]
    places += [os.path.join(prefix, "bin", version) for prefix in (sys.exec_prefix, sys.base_exec_prefix)]
    for place in places:
        if place and _PYTHON.fullmatch(os.path.basename(place)) and os.access(place, os.X_OK):
            return place
    raise OSError(f"no Python found, {sys.executable!r} is none")


class _Running:
    """A process that was started, and the socket to it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self._pid, self._channel, self._received = pid, channel, b""

    @staticmethod
    def start(interpreter: str) -> _Running:
        """Starts a process.

        Raises:
            OSError, NotImplementedError: the system cannot start it.
        """
        parent_end, child_end = (_above_standard(end) for end in socket.socketpair())
        child_end.setblocking(True)  # whatever the program's `socket.setdefaulttimeout` is
        arguments = [interpreter, "-I", "-S", "-B", str(Path(meter.__file__).with_name("__main__.py"))]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
        environment.update(cuda_places())
        environment[FUSION_VARIABLE] = "0"  # planned graphs run without it, too
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, child_end.fileno(), 0)]
        actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        try:
            pid = os.posix_spawn(interpreter, arguments, environment, file_actions=actions, setsigmask=(),
                                 setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})  # fmt: skip
        except BaseException:
            parent_end.close()
            raise
        finally:
            child_end.close()
        return _Running(pid, parent_end)

    def ask(self, request: Mapping[str, Any], limit: float) -> Any:
        """The answer, which comes within ``limit`` seconds.

        Raises:
            OSError: it does not, or the process is not there any more.
            ValueError: it is not JSON.
        """
        deadline = time.monotonic() + limit
        text = json.dumps(request, ensure_ascii=False).encode() + b"\n"
        self._within(deadline, lambda: self._channel.sendall(text, socket.MSG_NOSIGNAL))
        while b"\n" not in self._received:
            more = self._within(deadline, lambda: self._channel.recv(1 << 16))
            if not more:
                raise OSError("ended")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def _within(self, deadline: float, action: Callable[[], Any]) -> Any:
        self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            return action()
        except socket.timeout as error:
            raise TimeoutError("gave no answer in time") from error

    def end(self) -> str:
        """Ends the process and says how it ended, if it had ended by itself."""
        self._channel.close()
        with contextlib.suppress(ChildProcessError):  # another part of the program has waited for all processes
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid == 0:  # it is there, so its number is still its own
                os.kill(self._pid, signal.SIGKILL)
                _, status = os.waitpid(self._pid, 0)
            if os.WIFEXITED(status):
                return f"ended with {os.WEXITSTATUS(status)}"
            if pid or os.WTERMSIG(status) != signal.SIGKILL:
                return _ended_by(os.WTERMSIG(status))
        return ""


def _ended_by(number: int) -> str:
    return f"was ended by signal {int(number)}"


def _above_standard(end: socket.socket) -> socket.socket:
    """Returns the socket under a number above those of the standard files, which a program may have closed."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
