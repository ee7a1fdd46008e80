"""Tests of `echo.instrument.windows`: rows; summary; windows; charts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echo.errors import GraphError
from echo.instrument.windows import (
    COLUMNS,
    Reading,
    Row,
    RowFile,
    Windows,
    chart,
    columns_of,
    read_rows,
    save_chart,
    summary,
)
from tests.instrument.rows_of import row

ROWS = (row(0), row(1, device=7, gpu_joules=12.5, cpu_joules=0.25), row(2, storage=None))


def written(path: Path) -> RowFile:
    file = RowFile(path)
    for each in ROWS:
        file.add(each)
    return file


def test_rows_are_read_back_before_the_file_is_closed(tmp_path: Path) -> None:
    file = written(tmp_path / "run.csv")
    assert read_rows(tmp_path / "run.csv") == ROWS
    file.close()
    lines = (tmp_path / "run.csv").read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert lines[2].endswith(",0,50.0,640.0,25.0,0.5")


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    written(path).close()
    data = path.read_bytes()
    for end in range(len(data) - 30, len(data)):
        path.write_bytes(data[:end])
        assert read_rows(path) == ROWS[:2]


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", ",".join(COLUMNS) + "\n1,2\n", ",".join(COLUMNS) + "\nx" + "," * 14 + "\n"]
)
def test_file_without_recording_raises_graph_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(text)
    with pytest.raises(GraphError, match=r"run\.csv is no recording"):
        read_rows(tmp_path / "run.csv")


def test_the_file_of_another_process_stays(tmp_path: Path) -> None:
    first = written(tmp_path / "run.csv")
    second = RowFile(tmp_path / "run.csv")
    assert second.path == tmp_path / f"run-{os.getpid()}.csv"
    second.add(ROWS[1])
    assert read_rows(first.path) == ROWS
    assert read_rows(second.path) == ROWS[1:2]
    third = RowFile(tmp_path / "run.csv", replace=True)
    assert third.path == first.path
    assert read_rows(third.path) == ()
    for file in (first, second, third):
        file.close()


def test_row_gives_its_rates() -> None:
    found = ROWS[1]
    assert (found.ms_a_step, found.samples_a_second, found.gpu_watts, found.cpu_watts) == (50.0, 640.0, 25.0, 0.5)
    assert (ROWS[0].gpu_watts, ROWS[0].cpu_watts) == (None, None)
    assert columns_of(ROWS)["gpu_watts"] == [None, 25.0, None]
    assert replace(found, steps=5).ms_a_step == 100.0


def energy(number: int, **values: Any) -> Any:
    return row(number, gpu_joules=64.0, cpu_joules=32.0, device=5, **values)


def test_the_warm_up_is_left_out_of_all_but_bytes() -> None:
    found = summary(
        [energy(0, seconds=9.0, process=2**40), energy(1), energy(2, seconds=0.3), energy(3, storage=2**30)]
    )
    assert (found["steps"], found["steps_left_out"], found["samples"]) == (30, 10, 960)
    assert found["seconds"] == pytest.approx(1.3)
    assert found["ms_a_step"] == 50.0, "the median"
    assert found["samples_a_second"] == 640.0, "the median"
    assert (found["process"], found["storage"], found["device"]) == (2**40, 2**30, 5)
    assert (found["gpu_joules_a_sample"], found["cpu_joules_a_sample"]) == (0.2, 0.1)
    assert found["gpu_watts"] == pytest.approx(192 / 1.3)


def test_summary_lacks_what_a_row_lacks() -> None:
    found = summary([energy(1), row(2)])
    assert found["gpu_joules_a_sample"] is found["cpu_watts"] is None
    assert found["device"] == 5


def test_summary_of_warm_up_alone_has_no_rates() -> None:
    found = summary([energy(0)])
    assert found["ms_a_step"] is found["samples_a_second"] is found["gpu_joules_a_sample"] is None
    assert (found["steps"], found["steps_left_out"]) == (0, 10)
    assert summary([])["process"] is None


class Machine:
    """A second of the clock and 10 joules a step of work, which is done when it is waited for."""

    def __init__(self, every: int, warmup: int) -> None:
        self.now, self.asked, self.reads = 100.0, 0, 0
        self.windows = Windows(self.read, self.wait, every, warmup, lambda: self.now)

    def read(self) -> Reading:
        assert self.asked == 0, "read before all work was done"
        self.reads += 1
        return Reading(7, 8, 9, 10 * self.now, None)

    def wait(self) -> None:
        self.now, self.asked = self.now + self.asked, 0

    def steps(self, count: int) -> list[Row]:
        rows = []
        for _ in range(count):
            self.asked += 1
            rows.append(self.windows.step(4))
        return [row for row in rows if row is not None]


def test_rows_of_all_but_the_first_step() -> None:
    machine = Machine(every=5, warmup=3)
    rows = machine.steps(12)
    assert [(row.step, row.time, row.steps, row.samples, row.seconds) for row in rows] == [
        (6, 5.0, 5, 20, 5.0), (11, 10.0, 5, 20, 5.0),
    ]  # fmt: skip
    assert [row.warmup for row in rows] == [True, False]
    assert [(row.gpu_joules, row.cpu_joules) for row in rows] == [(50.0, None)] * 2
    assert (rows[0].process, rows[0].storage, rows[0].device) == (7, 8, 9)
    assert machine.reads == 3, "once where a window ends and the next begins"
    last = machine.windows.close()
    assert last is not None
    assert (last.step, last.steps, last.seconds) == (12, 1, 1.0)
    assert machine.windows.close() is None


def test_first_step_of_an_open_window_counts() -> None:
    machine = Machine(every=2, warmup=0)
    machine.windows.open()
    (row,) = machine.steps(2)
    assert (row.step, row.time, row.seconds, row.warmup) == (2, 2.0, 2.0, False)


def test_time_between_windows_is_in_none() -> None:
    machine = Machine(every=10, warmup=0)
    machine.windows.open()
    machine.steps(3)
    row = machine.windows.close()
    assert row is not None
    assert (row.steps, row.seconds) == (3, 3.0)
    machine.now += 50  # an evaluation
    machine.windows.open()
    (row,) = machine.steps(10)
    assert (row.step, row.steps, row.seconds, row.gpu_joules, row.time) == (13, 10, 10.0, 100.0, 63.0)
    machine.steps(4)
    machine.windows.open()  # forgets them
    assert machine.windows.close() is None


# Recordings as panels: one for each figure that was measured.


def titles(spec: dict[str, object]) -> list[str]:
    return [panel["encoding"]["y"]["title"] for panel in spec["vconcat"]]  # type: ignore[attr-defined]


def test_a_panel_for_each_figure() -> None:
    spec = chart({"off": [row(0), row(1)], "on": [row(0, gpu_joules=10.0, storage=None)]})
    assert titles(spec) == [
        "ms a step",
        "peak of the process, MB",
        "peak of MXNet's storage, MB",
        "power of the GPUs, W",
    ]
    time, _, storage, power = spec["vconcat"]
    assert time["data"]["values"][2:] == [
        *({"recording": "without echo", "step": step, "value": 50.0} for step in (11, 21)),
        *({"recording": "with echo", "step": step, "value": 50.0} for step in (1, 11)),
    ], "each row is a line from its first step to its last"
    assert [point["recording"] for point in storage["data"]["values"]] == ["without echo"] * 4
    assert power["data"]["values"] == [{"recording": "with echo", "step": step, "value": 20.0} for step in (1, 11)]
    assert time["encoding"]["x"]["title"] == "training step (up to 11: warm-up, not in the sums)"
    assert time["encoding"]["color"]["legend"] == {"orient": "top"}
    assert chart({"run": [row()]})["vconcat"][0]["encoding"]["color"]["legend"] is None


def test_a_picture(tmp_path: Path) -> None:
    save_chart({"off": [row(0), row(1)], "on": [row(0), row(1)]}, tmp_path / "both.svg")
    text = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert "ms a step" in text
    assert "training step" in text
