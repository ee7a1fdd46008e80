"""Trains one model in this process, and leaves what came of it in the current folder.

    python -m projects.child PROJECT MODEL STEPS

result.npz holds losses, gradients, weights, random draws and what the model's function returned; figures.json the
seconds of the training, planning included, and the peaks of resident memory and of what MXNet and oneDNN allocated;
profile.json is MXNet's memory counter, which does not see what oneDNN allocates.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from projects.witness import Witness, as_numpy, random_draws, seed


def main() -> None:
    """Imports the project, trains, writes."""
    project, model, steps = sys.argv[1:]
    module = importlib.import_module(f"projects.{project}")
    module.load()  # imports of the project before mxnet come before mxnet
    import mxnet as mx

    witness = Witness()
    witness.watch()
    seed()
    started, before = time.perf_counter(), processor_seconds()
    found = module.MODELS[model](int(steps))
    mx.nd.waitall()
    figures = {
        "seconds": time.perf_counter() - started,
        "processor_seconds": processor_seconds() - before,
        "rss_mb": peak_rss() / 1e6,
        "allocated_mb": _allocated() / 1e6,
    }
    arrays = {**witness.arrays(), **random_draws(), **{f"result/{name}": as_numpy(one) for name, one in found.items()}}
    mx.profiler.set_state("stop")
    mx.profiler.dump()
    np.savez("result.npz", **arrays)
    Path("figures.json").write_text(json.dumps(figures), encoding="utf-8")


def _allocated() -> int:
    """`echo.native.counter.peak` of this process, into which nothing of echo's is imported to ask."""
    asked = ctypes.CDLL(None).echo_allocated_peak
    asked.restype = ctypes.c_int64
    return int(asked())


def processor_seconds() -> float:
    """Of this process, and of its children that have ended: other work on the machine disturbs it less than a clock."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_rss() -> int:
    """Bytes of resident memory that this process had at most."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kilobytes) * 1024


if __name__ == "__main__":
    main()
