"""Rows in files: written at once, read back the same, cut off at any place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from echo.errors import GraphError
from echo.recording.rows import COLUMNS, RowFile, columns_of, read_rows
from tests.recording.rows_of import row

ROWS = (row(0), row(1, device=7, gpu_joules=12.5, cpu_joules=0.25), row(2, storage=None))


def written(path: Path) -> RowFile:
    file = RowFile(path)
    for each in ROWS:
        file.add(each)
    return file


def test_there_and_back_before_the_file_is_closed(tmp_path: Path) -> None:
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
def test_other_files_are_named(text: str, tmp_path: Path) -> None:
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


def test_what_follows_from_a_row() -> None:
    found = ROWS[1]
    assert (found.ms_a_step, found.samples_a_second, found.gpu_watts, found.cpu_watts) == (50.0, 640.0, 25.0, 0.5)
    assert (ROWS[0].gpu_watts, ROWS[0].cpu_watts) == (None, None)
    assert columns_of(ROWS)["gpu_watts"] == [None, 25.0, None]
    assert replace(found, steps=5).ms_a_step == 100.0
