"""Windows on a clock, a meter and a device that are made here."""

from __future__ import annotations

from echo.recording.rows import Row
from echo.recording.windows import Reading, Windows


class Machine:
    """A second of the clock and 10 joules a step of work, which is done when somebody waits."""

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


def test_with_an_open_window_the_first_step_counts() -> None:
    machine = Machine(every=2, warmup=0)
    machine.windows.open()
    (row,) = machine.steps(2)
    assert (row.step, row.time, row.seconds, row.warmup) == (2, 2.0, 2.0, False)


def test_what_is_between_is_in_no_window() -> None:
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
