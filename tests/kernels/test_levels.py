"""The instructions that the CPU kernels use: every variant is in the library, and the best one is taken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echo import kernels
from tests.kernels.test_gemm import FEATURES, LEVELS

ROOT = Path(__file__).parents[2]
USED = """
import hashlib
import numpy as np
from echo.kernels import level
from tests.support.kernel_calls import call
print(level())
generator = np.random.default_rng(3)
pre, c = (generator.normal(size=(9, n)).astype(np.float32) for n in (4 * 37, 37))
outputs = [np.empty_like(c) for _ in "hc"]
call("lstm_cell", [pre, c], outputs)
print(hashlib.sha256(b"".join(array.tobytes() for array in outputs)).hexdigest())
"""


def best() -> str:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        pytest.skip("nothing says what this processor has")
    flags = set(path.read_text().split())
    return next(name for name in LEVELS if flags >= set(FEATURES[name]))


def used(asked: str) -> list[str]:
    """The level, and a digest of what a pointwise kernel gives."""
    environment = {**os.environ, "ECHO_DEBUG": f"level={asked}"}
    done = subprocess.run(
        [sys.executable, "-c", USED], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def test_the_best_is_taken() -> None:
    assert used("")[0] == best()
    assert used("no such level")[0] == best()


@pytest.mark.parametrize("asked", LEVELS)
def test_lower_level_is_taken_if_asked_for(asked: str) -> None:
    assert used(asked)[0] == max(asked, best(), key=LEVELS.index)


def test_pointwise_kernels_obey() -> None:
    """Fused multiply-add rounds once instead of twice, which shows."""
    if best() == "portable":
        pytest.skip("this processor has nothing but portable instructions")
    assert used("avx2")[1] != used("portable")[1]


def test_every_variant_is_there() -> None:
    """Whichever compiler built the library: wide registers, and fused multiply-add in both widths."""
    if shutil.which("objdump") is None or os.uname().machine != "x86_64":
        pytest.skip("there is no objdump here, or no x86-64 code")
    path = kernels.kernels_library()._name
    code = subprocess.run(["objdump", "-d", path], check=True, capture_output=True, text=True).stdout
    for register in ("zmm", "ymm"):
        assert len(re.findall(rf"\bvfn?m(?:add|sub)\d+[ps]s.*%{register}", code)) > 500, register
