"""What planning takes of the process's memory is bounded, and what it leaves there is little more than echo's code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 18 << 20  # some 11 MB are code, of Python and native
MOST_AT_ONCE = 64 << 20  # while a cold start plans

# Binds a model without memory for its arrays; prints the bytes that are resident then, and those that were at most.
_BINDING = """
import dataclasses, gc, sys
from benchmarks.models import MODELS, SMALL, bind_without_memory

models, name, on = sys.argv[1:]
model = {"full": MODELS, "small": SMALL}[models][name]()
if int(on):
    import echo
    model = dataclasses.replace(model, symbol=echo.optimize(model.symbol))
executor = bind_without_memory(model)
assert type(executor).__name__ == ("PlannedExecutor" if int(on) else "Executor")
gc.collect()
with open("/proc/self/status") as file:
    sizes = dict(line.split(":") for line in file)
print(*(int(sizes[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")))
"""


def resident(models: str, name: str, on: bool, cache: Path) -> tuple[int, int]:
    environment = {**os.environ, "ECHO_CACHE_DIR": str(cache), "ECHO_MAX_PLANNING": "none", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _BINDING, models, name, str(int(on))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    now, peak = map(int, done.stdout.split())
    return now, peak


@pytest.mark.slow
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's memory is resident too")
@pytest.mark.parametrize(("models", "name"), [("small", "nmt"), ("full", "lm")])
def test_a_cold_planning_takes_and_leaves_little(models: str, name: str, tmp_path: Path) -> None:
    (stock, stock_peak), (now, peak) = (resident(models, name, on, tmp_path) for on in (False, True))
    assert now - stock < MOST
    assert peak - stock_peak < MOST_AT_ONCE
