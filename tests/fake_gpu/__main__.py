"""Tests of GPU contexts on a fake CUDA device: python -m tests.fake_gpu FOLDER [pytest's arguments]

Builds the device's libraries and the emulated kernels into FOLDER, for the CUDA wheel of MXNet in this Python, and runs
the tests of this folder on them, and those of the launcher, which emulates a driver next to the wheel's. ``make
test-gpu-contexts`` makes an environment with such a wheel and calls this.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fake_gpu.environment import prepare

HERE = Path(__file__).resolve().parent
LAUNCHER = tuple(str(HERE.parent / "kernels" / f"test_cuda_{name}.py") for name in ("launcher", "streams"))
NO_TESTS = 5  # pytest's status where a selection leaves none


def main() -> int:
    """Builds and runs; pytest's exit status."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    environment = {**os.environ, **prepare(Path(sys.argv[1]).resolve())}
    command = [sys.executable, "-m", "pytest", *(sys.argv[2:] or ["-q"])]
    # apart: a process takes the first driver that it meets, the fake device's or the launcher's own
    status = [subprocess.call([*command, *tests], env=environment) for tests in ([str(HERE)], LAUNCHER)]
    return max(each for each in status if each != NO_TESTS) if set(status) != {NO_TESTS} else NO_TESTS


if __name__ == "__main__":
    sys.exit(main())
