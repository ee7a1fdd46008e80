"""This process: its processor and memory, the garbage that it leaves, and the time at which planning has to end."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Sequence

# Which processor this is, as far as measured seconds depend on it.


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.lru_cache(maxsize=None)
def processor() -> str:
    """Model, family and stepping: on virtual machines the name alone says little."""
    keys = ("model name", "cpu family", "model", "stepping", "cache size")
    values: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in keys:
                values.setdefault(key.strip(), value.strip())
            if len(values) == len(keys):
                break
    return " ".join(values.get(key, "?") for key in keys)


# The resident memory of this process, as Linux counts it.

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def is_whole_library(path: Path) -> bool:
    """Whether a shared library of 64 bits ends where its header says: loading one that was cut off kills the process.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        header, size = file.read(64), os.fstat(file.fileno()).st_size
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return False
    (sections,) = struct.unpack_from("<Q", header, 40)
    step, count = struct.unpack_from("<HH", header, 58)
    return bool(sections + step * count <= size)


def resident(line: str) -> int:
    """Bytes of this process by a line of Linux's status file: VmRSS, or VmHWM, the most so far; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError):
        for text in _STATUS.read_text(encoding="ascii").splitlines():
            if text.startswith(line + ":"):
                return int(text.split()[1]) << 10
    return 0


def reset_peak() -> None:
    """Has Linux forget the most bytes of this process so far (VmHWM); a container may not allow it."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5", encoding="ascii")


# Python's search for garbage, switched off where it only costs time.


_stopped: list[bool] = []  # one item while a thread has switched the search off, which it will switch on again


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Stops Python's search for cycles, which takes a fifth of the time of planning; planning makes none.

    A child that another thread forks meanwhile searches as before: the thread that would go on is not there.
    """
    if not gc.isenabled():
        yield
        return
    try:
        _stopped.append(True)
        gc.disable()
        yield
    finally:
        gc.enable()
        _stopped.clear()


def _go_on_in_child() -> None:
    if _stopped:
        _stopped.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_go_on_in_child)


# Memory that was freed goes back to the system, although the C library would keep it for later.

_MANY = 100  # nodes: planning one of 361 frees some MB; of a tiny graph, it takes less time than a search of the heap


def trim_after(nodes: int) -> None:
    """Trims after work on a graph of so many nodes, if that may have freed some MB."""
    if nodes >= _MANY:
        trim()


def trim() -> None:
    """Returns free memory of the heap to the system; with a C library other than glibc, nothing."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(ctypes.c_size_t(0))


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of parameters
_LARGE, _KEPT_AT_THE_END = 16 << 20, 32 << 20  # bytes
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def return_large_blocks() -> bool:
    """Has blocks of 16 MiB and more go back to the system when they are freed, and returns whether they do.

    glibc raises its threshold to the largest block that was freed, up to 32 MiB: from the second step on, the arrays of
    a graph that has no memory of its own lie in the heap, between holes. ResNet-18 at batch 64 and 128 x 128 pixels
    took 966 MB with a plan of 268 MB, and 837 MB with this. Lower thresholds save more (686 MB at 1 MiB), but a step
    of an LSTM then takes 12 % longer, of an encoder 19 %; with this one, at most 3 %. Settings of the user stay, and
    other C libraries do as they do.
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None or any(os.environ.get(variable) for variable in _VARIABLES):
        return False
    return bool(set_parameter(_MMAP_THRESHOLD, _LARGE) and set_parameter(_TRIM_THRESHOLD, _KEPT_AT_THE_END))


# Data classes without a dictionary for each of their values, where Python knows them.

# For ``@dataclass(**SLOTS)``: values take half the memory from Python 3.10 on, and before it as much as without it.
SLOTS: dict[str, bool] = {"slots": True} if sys.version_info >= (3, 10) else {}


# The time at which planning has to end: a safety net, so that no bind waits longer than its user wants.
#
# If planning ends before two thirds of it are over, nothing depends on the clock: plans are the same in every run,
# and on every worker.


class DeadlineExceeded(Exception):
    """A search has to end now; the best that it has found so far is taken."""


@dataclass(frozen=True)
class Deadline:
    """A moment by the process's clock; ``seconds`` is the time that the user gave for all of planning.

    ``length`` is the time that there was until it at first: less than ``seconds`` where it ends one part of planning.
    """

    seconds: float
    at: float
    length: float

    @staticmethod
    def after(seconds: float | None) -> Deadline:
        """Returns the deadline ``seconds`` from now, or one that never passes for None."""
        return NEVER if seconds is None else Deadline(seconds, time.monotonic() + seconds, seconds)

    @property
    def left(self) -> float:
        """Seconds until then, 0 where it is over, infinite where there is none."""
        return max(0.0, self.at - time.monotonic()) if self.at < math.inf else math.inf

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return not self.left

    def with_room(self, once: Sequence[tuple[float, float]] = ()) -> Deadline:
        """An earlier deadline, so that what follows may take as long as all so far, at most a third of the whole.

        Work from one moment to another that is done ``once`` is left out: what follows has none of it.
        """
        if self.at == math.inf:
            return self
        begin = self.at - self.length
        so_far = self.length - self.left - sum(end - max(start, begin) for start, end in once if end > begin)
        return Deadline(self.seconds, self.at - min(so_far, self.length / 3), self.length)

    def rest(self, leaving: float = 0.0) -> Deadline:
        """The same moment, or so many seconds before it, for what begins now: it has all the time until then."""
        return Deadline(self.seconds, self.at - leaving, max(0.0, self.left - leaving))

    def part(self, count: int) -> Deadline:
        """An earlier deadline, which leaves as much time to each of ``count`` things that are to be done until then."""
        left = self.left / count
        return self if count == 1 or self.at == math.inf else Deadline(self.seconds, self.at - self.left + left, left)


NEVER = Deadline(math.inf, math.inf, math.inf)
