"""The kernel of the barrier alone: in the emulation, and through NVRTC where that is there."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest

from benchmarks import gpu_barrier
from benchmarks.gpu_barrier import SOURCE, BarrierKernel, CudaError
from tests.kernels.cuda_emulation import Emulated, built, compile_kernels

ROOT = Path(__file__).resolve().parents[2]
IMAGE = b".version 6.0\n.target sm_50\n.visible .entry grid_barriers(\n"


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[Emulated]:
    made = Emulated(built().driver, built().kernels)
    made.load(compile_kernels(tmp_path, built().fibers, SOURCE, "barriers"))
    yield made
    made.set(refused=0, module=0)


@pytest.fixture
def kernel(emulated: Emulated) -> BarrierKernel:
    return BarrierKernel(IMAGE, emulated.driver)


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "steps"), [(1, 1), (3, 7)])
def test_every_block_arrives_at_every_barrier(kernel: BarrierKernel, blocks: int, steps: int) -> None:
    arrived = np.zeros(1, np.uint32)
    kernel.launch(blocks, steps, arrived.ctypes.data, 0)
    assert arrived[0] == blocks * steps


def test_refused_launch_raises_the_drivers_error(emulated: Emulated, kernel: BarrierKernel) -> None:
    emulated.set(refused=720)
    with pytest.raises(CudaError, match="cuLaunchCooperativeKernel returns 720"):
        kernel.launch(1, 1, 0, 0)
    emulated.set(module=222)
    with pytest.raises(CudaError, match="cuModuleLoadDataEx returns 222: the compiler's log"):
        BarrierKernel(IMAGE, emulated.driver)


# In a process of its own: some versions of NVRTC ask the driver, and the emulated one has no answers for them.
COMPILE = """
import sys
from pathlib import Path
from benchmarks import gpu_barrier
gpu_barrier.SOURCE = Path(sys.argv[1])
try:
    nvrtc = gpu_barrier.nvrtc_at_hand()
except gpu_barrier.CudaError:
    sys.exit(77)
try:
    code = gpu_barrier.compiled(nvrtc, (8, 0))
    print(code[:4] == b"\\x7fELF", b"grid_barriers" in code)
except gpu_barrier.CudaError as error:
    print(error)
"""


def compile_apart(source: Path) -> str:
    done = subprocess.run([sys.executable, "-c", COMPILE, source], capture_output=True, text=True, check=False,
                          cwd=ROOT)  # fmt: skip
    if done.returncode == 77:
        pytest.skip("needs NVRTC: make ptx installs it")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nvrtc_compiles_it() -> None:
    assert compile_apart(SOURCE) == "True True"


def test_uncompilable_code_returns_nvrtcs_error(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text("no code\n")
    assert "error" in compile_apart(tmp_path / "wrong.cu")


def test_missing_nvrtc_raises_cuda_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(gpu_barrier, "of_wheels", dict)
    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(CudaError, match=r"there is no libnvrtc\.so"):
        gpu_barrier.nvrtc_at_hand()
