"""What does a recording cost, and how long does the command line take to show its help?

    python -m benchmarks.recorder

A network whose step takes about 100 ms trains in one process, with a recorder and without one in turn, at rows of 10
steps and of one. A figure is the median of the ratios of neighbouring rounds, less one; next to it stands the time of a
reading of all meters. Then each command shows its help, in a process of its own. Writes results/recorder.json.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet import autograd, gluon

from benchmarks.record import parser, save
from echo.callbacks import Recorder
from echo.instrument.recording import Meters

LAYERS, UNITS, BATCH = 4, 1024, 400
STEPS, ROUNDS = 20, 12
READINGS, HELPS = 1000, 7
COMMANDS = ("", "run", "verify", "plan", "show", "why", "profile", "compare", "frontier", "schedule", "record",
            "doctor", "cache show", "cache clear")  # fmt: skip


class Training:
    """A network that takes steps."""

    def __init__(self) -> None:
        self.net = gluon.nn.HybridSequential()
        for _ in range(LAYERS):
            self.net.add(gluon.nn.Dense(UNITS, activation="tanh", in_units=UNITS))
        self.net.initialize()
        self.net.hybridize(static_alloc=True)
        self.trainer = gluon.Trainer(self.net.collect_params(), "sgd")
        self.data = mx.nd.ones((BATCH, UNITS))

    def seconds_a_step(self, recorder: Recorder | None) -> float:
        """The mean of a round."""
        mx.nd.waitall()
        started = time.perf_counter()
        for _ in range(STEPS):
            with autograd.record():
                loss = self.net(self.data).mean()
            loss.backward()
            self.trainer.step(BATCH)
            if recorder is not None:
                recorder.step(BATCH)
        mx.nd.waitall()
        return (time.perf_counter() - started) / STEPS


def overhead(training: Training, every: int, folder: Path) -> dict[str, Any]:
    """Steps with rows of so many steps, and without, in turn."""
    without, ratios = [], []
    training.seconds_a_step(None)
    for number in range(ROUNDS):
        without.append(training.seconds_a_step(None))
        with Recorder(folder / f"{number}.csv", every=every) as recorder:
            recorded = training.seconds_a_step(recorder)
        ratios.append(recorded / statistics.mean((without[-1], training.seconds_a_step(None))))
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "every": every,
        "ms_a_step": 1000 * statistics.median(without),
        "overhead": statistics.median(ratios) - 1,
        "quarters": [quarter - 1 for quarter in (quarters[0], quarters[2])],
    }


def reading() -> float:
    """Seconds of one reading of all meters."""
    meters = Meters()
    try:
        started = time.perf_counter()
        for _ in range(READINGS):
            meters.read()
        return (time.perf_counter() - started) / READINGS
    finally:
        meters.close()


def help_seconds(command: str) -> float:
    """The median time of a process that shows the help of a command."""
    seconds = []
    for _ in range(HELPS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "echo", *command.split(), "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def main() -> None:
    """Measures, prints and saves."""
    parser(__doc__).parse_args()
    training = Training()
    rows: list[dict[str, Any]] = [{"reading_us": 1e6 * reading()}]
    print(f"one reading of all meters: {rows[0]['reading_us']:.0f} us")
    with tempfile.TemporaryDirectory() as folder:
        for every in (10, 1):
            row = overhead(training, every, Path(folder))
            rows.append(row)
            low, high = row["quarters"]
            print(f"rows of {every} steps of {row['ms_a_step']:.0f} ms: {100 * row['overhead']:+.2f} % "
                  f"(quarters {100 * low:+.2f} to {100 * high:+.2f} %)")  # fmt: skip
    for command in COMMANDS:
        rows.append({"command": command, "help_seconds": help_seconds(command)})
        print(f"mxecho {command} --help: {rows[-1]['help_seconds']:.2f} s")
    print("written:", save("recorder", rows).name)


if __name__ == "__main__":
    main()
