"""The data-parallel example: a scheduler, a server and two workers, with echo and without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "data_parallel.py"


def run(folder: Path, **environment: str) -> tuple[list[str], str]:
    """The workers' output, in order, and the log of them all."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("ECHO", "DMLC"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), "--launch", "2", "--steps", "4", "--batch", "8"],
        capture_output=True, text=True, cwd=folder, timeout=240, check=False,
        env={**given, "ECHO_CACHE_DIR": str(folder), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("worker")), done.stderr


@pytest.mark.slow
def test_workers_with_echo_learn_the_same_weights(tmp_path: Path) -> None:
    stock, _ = run(tmp_path)
    found, log = run(tmp_path, ECHO="1", ECHO_MAX_OVERHEAD="none", ECHO_FUSE="0", ECHO_LOG="DEBUG")
    assert len(stock) == 2
    assert len({re.search(r"weights (\w+)", line).group(1) for line in stock}) == 1, "the workers differ"
    assert found == stock
    assert len(re.findall(r"[Mk]B planned .* [1-9]\d* feature maps? recomputed", log)) == 2
