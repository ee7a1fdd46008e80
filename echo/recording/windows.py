"""Training steps, gathered into windows that begin and end when the device has nothing to do."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

from echo.recording.rows import Row

_DIGITS = 9  # of seconds and joules: clocks count nanoseconds


class Reading(NamedTuple):
    """Bytes as in `Row`, and joules since some moment that stays the same."""

    process: int
    storage: int | None = None
    device: int | None = None
    gpu_joules: float | None = None
    cpu_joules: float | None = None


class Windows:
    """Makes a row of each ``every`` steps.

    Args:
        read: what is measured now.
        wait: returns when all that was asked of MXNet is done. It is called where a window begins or ends, so that its
            time and its energy are those of its steps.
        every: steps of a window.
        warmup: steps from the first one on that are left out of sums.
        clock: seconds.
    """

    def __init__(
        self,
        read: Callable[[], Reading],
        wait: Callable[[], None],
        every: int,
        warmup: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._wait, self._clock = read, wait, clock
        self._every, self._warmup = every, warmup
        self._done = self._steps = self._samples = 0
        self._first: float | None = None
        self._opened: tuple[float, Reading] | None = None

    def open(self) -> None:
        """Begins a window here; steps of one that was open and has no row yet are forgotten."""
        self._wait()
        now = self._clock()
        self._first = now if self._first is None else self._first
        self._opened = now, self._read()
        self._steps = self._samples = 0

    def step(self, samples: int) -> Row | None:
        """A training step of so many samples ends here; the row of a window that it fills.

        Where no window is open, one begins here: when the step began is not known.
        """
        self._done += 1
        if self._opened is None:
            self.open()
            return None
        self._steps += 1
        self._samples += samples
        return self.close(reopen=True) if self._steps >= self._every else None

    def close(self, reopen: bool = False) -> Row | None:
        """Ends the open window; its row, None where it has no step. With ``reopen``, the next one begins here."""
        opened, steps = self._opened, self._steps
        self._opened = None
        if opened is None or not steps:
            return None
        self._wait()
        now, reading = self._clock(), self._read()
        began, before = opened
        row = Row(
            step=self._done,
            time=round(now - (began if self._first is None else self._first), _DIGITS),
            steps=steps,
            samples=self._samples,
            seconds=round(max(now - began, 1e-9), _DIGITS),
            process=reading.process,
            storage=reading.storage,
            device=reading.device,
            gpu_joules=_between(before.gpu_joules, reading.gpu_joules),
            cpu_joules=_between(before.cpu_joules, reading.cpu_joules),
            warmup=self._done - steps < self._warmup,
        )
        if reopen:
            self._opened = now, reading
        self._steps = self._samples = 0
        return row


def _between(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else round(after - before, _DIGITS)
