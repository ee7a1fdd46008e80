"""The driver compiles only the kernels that a model launches, each once a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.first_use import NMT

ROOT = Path(__file__).resolve().parents[2]


def test_a_model_loads_the_kernels_that_it_launches(tmp_path: Path) -> None:
    """The list whose seconds `benchmarks.first_use` measures; none is loaded twice."""
    environment = {**os.environ, "ECHO_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "tests.fake_gpu.loading"], cwd=ROOT, env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{name} 1" for name in sorted(NMT)]
