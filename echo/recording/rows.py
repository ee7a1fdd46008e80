"""A window of training steps as a row; rows as CSV, which is written row by row, so that what ends early is kept."""

from __future__ import annotations

import csv
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Callable, Iterable, Sequence

from echo.errors import GraphError


@dataclass(frozen=True)
class Row:
    """A window of ``steps`` training steps, at whose end ``step`` of them were done, ``time`` seconds after the first.

    It took ``seconds`` of the clock and ``samples`` of the data. Bytes are: ``process``, the most that the process
    held at once (up to then, if Linux does not let the mark be reset); ``storage``, the most that MXNet's arrays held
    at once, of those that were allocated since the recording began; ``device``, what is used on the GPUs at the end.
    Joules are those of the GPUs and of the processors' packages during the window. What was not measured is None.
    ``warmup`` is set where a step of the window is one of those that are left out of sums.
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
    ``NAME-PROCESS.csv`` beside it.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], replace: bool = False) -> None:
        self.path = Path(path)
        try:
            self._file: IO[str] = open(self.path, "w" if replace else "x", newline="", encoding="utf-8")  # noqa: SIM115
        except FileExistsError:
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
        self._write([_text(values[name]) for name in COLUMNS])

    def close(self) -> None:
        """Closes the file, which then has all rows that were added."""
        self._file.close()

    def _write(self, cells: Sequence[str]) -> None:
        self._writer.writerow(cells)
        self._file.flush()


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return repr(value)


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
