"""Blocks without ``static_alloc``: their plans count what MXNet's pool on a GPU keeps, and the device sees it.

Each pool and engine of MXNet needs a process of its own (`dynamic_blocks`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The part of what is planned that the device sees at least. MXNet's usual engine frees arrays on another thread, a
# moment after their last reader has run; the naive one at once. Of LSTM cells, stock's plan is a few percent too large.
LEAST = {"NaiveEngine": 0.95, "ThreadedEnginePerDevice": 0.25}
CELLS = {"NaiveEngine": 0.75, "ThreadedEnginePerDevice": 0.6}


@pytest.mark.every(6)
@pytest.mark.parametrize("engine", sorted(LEAST))
@pytest.mark.parametrize("pool", ["Naive", "Round", "Unpooled"])
def test_the_device_sees_what_is_planned(pool: str, engine: str, tmp_path: Path) -> None:
    variables = {"MXNET_GPU_MEM_POOL_TYPE": pool, "MXNET_ENGINE_TYPE": engine, "ECHO_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.fake_gpu.dynamic_blocks"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == 4
    for row in rows:
        planned, seen = (before - after for before, after in (row["planned"], row["seen"]))
        assert seen >= (CELLS if row["model"] == "cells" else LEAST)[engine] * planned > 0, row
