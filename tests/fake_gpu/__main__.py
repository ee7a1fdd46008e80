"""Tests of GPU contexts on a fake CUDA device: python -m tests.fake_gpu FOLDER [pytest's arguments]

Builds the device's libraries and the emulated kernels into FOLDER, for the CUDA wheel of MXNet in this Python, and runs
the tests of this folder on them, and those of the launcher, which emulates a driver beside the wheel's. ``make
test-gpu-contexts`` makes an environment with such a wheel and calls this.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.fake_gpu.environment import prepare

HERE = Path(__file__).resolve().parent
LAUNCHER = tuple(str(HERE.parent / "kernels" / f"test_cuda_{name}.py") for name in ("launcher", "streams"))


def main() -> int:
    """Builds and runs; pytest's exit status."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    environment = {**os.environ, **prepare(Path(sys.argv[1]).resolve())}
    command = [sys.executable, "-m", "pytest", *(sys.argv[2:] or ["-q"]), str(HERE), *LAUNCHER]
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    sys.exit(main())
