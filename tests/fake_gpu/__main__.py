"""Tests of GPU contexts on a fake CUDA device: python -m tests.fake_gpu FOLDER [pytest's arguments]

Builds the device's libraries and the emulated kernels into FOLDER, for the CUDA wheel of MXNet in this Python, and runs
the tests of this folder on them, and those of the launcher, which emulates a driver beside the wheel's. ``make
test-gpu-contexts`` makes an environment with such a wheel and calls this.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from tests.fake_gpu.libraries import build
from tests.kernels.cuda_emulation import built

HERE = Path(__file__).resolve().parent
LAUNCHER = tuple(str(HERE.parent / "kernels" / f"test_cuda_{name}.py") for name in ("launcher", "streams"))
SETTINGS = {
    "FAKE_CUDA_DEVICES": "2",
    "FAKE_CUDA_GEMM": "1",
    "FAKE_CUDA_LAZY": "1",
    "MXNET_CUDNN_LIB_CHECKING": "0",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
}


def libmxnet() -> Path:
    """The libmxnet.so of this Python, which cannot be imported before its CUDA libraries are there.

    Raises:
        SystemExit: there is none.
    """
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:
        sys.exit("error: expected MXNet's CUDA wheel in this environment, found none: pip install mxnet-cu112==1.9.1")
    return Path(spec.origin).with_name("libmxnet.so")


def main() -> int:
    """Builds and runs; pytest's exit status."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]).resolve()
    build(libmxnet(), folder)
    shutil.copy(built().kernels, folder / "kernels.so")
    environment = {**os.environ, **SETTINGS, "LD_LIBRARY_PATH": str(folder)}
    environment["FAKE_CUDA_KERNELS"] = str(folder / "kernels.so")
    command = [sys.executable, "-m", "pytest", *(sys.argv[2:] or ["-q"]), str(HERE), *LAUNCHER]
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    sys.exit(main())
