"""Windows of training steps: rows in a CSV file, their sums, and recordings as a picture."""

from __future__ import annotations

import csv
import errno
import os
import statistics
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from echo.errors import GraphError
from echo.system.terminal import MB

# A window of training steps as a row; rows as CSV, written one by one: a training that ends early keeps its rows.


@dataclass(frozen=True)
class Row:
    """A window of ``steps`` training steps, at whose end ``step`` of them were done, ``time`` seconds after the first.

    It took ``seconds`` of the clock and ``samples`` of the data. Bytes are: ``process``, the most that the process
    held at once (up to then, if Linux does not let the mark be reset); ``storage``, the most that MXNet's arrays held
    at once, of those that were allocated since the recording began; ``device``, the used memory of the GPUs at the end.
    Joules are those of the GPUs and of the processors' packages during the window. Values that were not measured are
    None. ``warmup`` is set if a step of the window is one of those that are left out of sums.
    """

    step: int
    time: float
    steps: int
    samples: int
    seconds: float
    process: int
    storage: int | None
    device: int | None
    gpu_joules: float | None
    cpu_joules: float | None
    warmup: bool

    @property
    def ms_a_step(self) -> float:
        return 1000 * self.seconds / self.steps

    @property
    def samples_a_second(self) -> float:
        return self.samples / self.seconds

    @property
    def gpu_watts(self) -> float | None:
        return None if self.gpu_joules is None else self.gpu_joules / self.seconds

    @property
    def cpu_watts(self) -> float | None:
        return None if self.cpu_joules is None else self.cpu_joules / self.seconds


_DERIVED = ("ms_a_step", "samples_a_second", "gpu_watts", "cpu_watts")
COLUMNS = (*(field.name for field in fields(Row)), *_DERIVED)


class RowFile:
    """A CSV file of rows: a line of `COLUMNS`, then a line a row, each on the disk when `add` returns.

    Unless it is to be replaced, a file that is there already is another process's: this one then writes
    ``NAME-PROCESS.csv`` alongside it.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], replace: bool = False) -> None:
        self.path = Path(path)
        try:
            self._file: IO[str] = open(self.path, "w" if replace else "x", newline="", encoding="utf-8")  # noqa: SIM115
        except FileExistsError:
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "expected a file, got a folder", str(path)) from None
            self.path = self.path.with_name(f"{self.path.stem}-{os.getpid()}{self.path.suffix}")
            self._file = open(self.path, "w", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._write(COLUMNS)

    def add(self, row: Row) -> None:
        """Writes a row.

        Raises:
            OSError: the disk is full, or the file gone.
        """
        values = {**asdict(row), "warmup": int(row.warmup), **{name: getattr(row, name) for name in _DERIVED}}
        self._write(["" if values[name] is None else repr(values[name]) for name in COLUMNS])

    def close(self) -> None:
        """Closes the file, which then has all rows that were added."""
        self._file.close()

    def _write(self, cells: Sequence[str]) -> None:
        self._writer.writerow(cells)
        self._file.flush()


def read_rows(path: str | os.PathLike[str]) -> tuple[Row, ...]:
    """The rows of a file; a last line that was cut off is left out.

    Raises:
        GraphError: the file is none of these.
        OSError: it cannot be read.
    """
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        whole = [line for line in file if line.endswith("\n")]
    lines = list(csv.reader(whole))
    if not lines or tuple(lines[0]) != COLUMNS:
        raise GraphError(f"{path} is no recording: expected the columns {', '.join(COLUMNS)}")
    try:
        return tuple(_row(dict(zip(COLUMNS, cells))) for cells in lines[1:])
    except (KeyError, ValueError) as error:
        raise GraphError(f"{path} is no recording: {error}") from error


def _row(cells: dict[str, str]) -> Row:
    readers: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": lambda text: text == "1"}
    values: dict[str, Any] = {}
    for field in fields(Row):
        kind, _, optional = str(field.type).partition(" | ")
        text = cells[field.name]
        values[field.name] = None if optional and not text else readers[kind](text)
    return Row(**values)


def columns_of(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """The rows as one list a column, for JSON."""
    all_rows = list(rows)
    return {name: [getattr(row, name) for row in all_rows] for name in COLUMNS}


# Sums up the rows of a recording: time, throughput, memory and energy, without the steps of the warm-up.

FORMAT = "echo-recording-2"


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures by name, None where nothing was measured.

    ``steps``, ``samples`` and ``seconds`` are sums; ``ms_a_step`` and ``samples_a_second`` are medians of the windows,
    which a pause does not move. Bytes are the most of all rows. Joules are those a sample, watts the mean.
    """
    counted = [row for row in rows if not row.warmup]
    samples, seconds = sum(row.samples for row in counted), sum(row.seconds for row in counted)
    gpu, cpu = _sum(counted, "gpu_joules"), _sum(counted, "cpu_joules")
    return {
        "steps": sum(row.steps for row in counted),
        "samples": samples,
        "seconds": seconds,
        "ms_a_step": statistics.median(row.ms_a_step for row in counted) if counted else None,
        "samples_a_second": statistics.median(row.samples_a_second for row in counted) if counted else None,
        **{name: _most(rows, name) for name in ("process", "storage", "device")},
        "gpu_joules_a_sample": _ratio(gpu, samples),
        "cpu_joules_a_sample": _ratio(cpu, samples),
        "gpu_watts": _ratio(gpu, seconds),
        "cpu_watts": _ratio(cpu, seconds),
        "steps_left_out": sum(row.steps for row in rows if row.warmup),
    }


def _sum(rows: Sequence[Row], name: str) -> float | None:
    values = [getattr(row, name) for row in rows]
    return None if not values or None in values else sum(values)


def _most(rows: Sequence[Row], name: str) -> int | None:
    return max((value for row in rows if (value := getattr(row, name)) is not None), default=None)


def _ratio(one: float | None, other: float) -> float | None:
    return one / other if one is not None and other else None


# Training steps, gathered into windows that begin and end when the device has nothing to do.

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
        read: returns the present measurements.
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
            **reading._replace(
                gpu_joules=_between(before.gpu_joules, reading.gpu_joules),
                cpu_joules=_between(before.cpu_joules, reading.cpu_joules),
            )._asdict(),
            warmup=self._done - steps < self._warmup,
        )
        if reopen:
            self._opened = now, reading
        self._steps = self._samples = 0
        return row


def _between(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else round(after - before, _DIGITS)


# Recordings as a picture: time, memory and power over the training steps, one line a recording.

_HEIGHT = 160
WORDS = {"run": "recorded", "off": "without echo", "on": "with echo"}
_PANELS: Mapping[str, Callable[[Row], float | None]] = {
    "ms a step": lambda row: row.ms_a_step,
    "peak of the process, MB": lambda row: row.process / MB,
    "peak of MXNet's storage, MB": lambda row: None if row.storage is None else row.storage / MB,
    "memory of the GPUs, MB": lambda row: None if row.device is None else row.device / MB,
    "power of the GPUs, W": lambda row: row.gpu_watts,
    "power of the CPUs, W": lambda row: row.cpu_watts,
}


def chart(recordings: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """A Vega-Lite specification: a panel for each figure that some recording has."""
    from echo.report.charts import PRINT, VEGA_LITE_SCHEMA

    panels = []
    warmup = max((row.step for rows in recordings.values() for row in rows if row.warmup), default=0)
    for title, value in _PANELS.items():
        points = [
            {"recording": name, "step": step, "value": round(figure, 4)}
            for name, rows in recordings.items()
            for row in rows
            if (figure := value(row)) is not None
            for step in (row.step - row.steps, row.step)  # where its line begins and ends
        ]
        if points:
            panels.append(_panel(title, points, list(recordings), warmup))
    title = " and ".join(WORDS.get(name, name) for name in recordings)
    return {
        "$schema": VEGA_LITE_SCHEMA,
        "background": "white",
        "title": f"A training, step by step: {title}",
        "config": PRINT,
        "vconcat": panels,
    }


def _panel(title: str, points: Sequence[Mapping[str, Any]], names: Sequence[str], warmup: int) -> dict[str, Any]:
    from echo.report.charts import GRAPH_COLORS, WIDTH

    named = {name: WORDS.get(name, name) for name in names}
    colors = [GRAPH_COLORS["stock" if name == "off" else "echo"] for name in names]
    color = {
        "field": "recording", "type": "nominal", "title": None,
        "scale": {"domain": list(named.values()), "range": colors},
    }  # fmt: skip
    points = [{**point, "recording": named[str(point["recording"])]} for point in points]
    from_zero = {"scale": {"zero": True}}
    step = f"training step (up to {warmup}: warm-up, not in the sums)" if warmup else "training step"
    return {
        "data": {"values": points},
        "width": WIDTH - 200,
        "height": _HEIGHT,
        "mark": {"type": "line", "interpolate": "step-before"},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": step, **from_zero},
            "y": {"field": "value", "type": "quantitative", "title": title, **from_zero},
            "color": {**color, "legend": {"orient": "top"} if len(names) > 1 else None},
        },
    }


def save_chart(recordings: Mapping[str, Sequence[Row]], path: str | os.PathLike[str]) -> None:
    """Writes the picture as PNG or SVG, as the end of the name says.

    Raises:
        OptionError: the name ends in another way.
        UnsupportedError: vl-convert-python is not there.
    """
    from echo.report.pages import write

    write(lambda: chart(recordings), path)
