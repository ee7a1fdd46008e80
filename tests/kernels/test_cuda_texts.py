"""Where the PTX of a kernel comes from: the installation, the cache, or NVRTC; and what is said where none has it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.cuda_emulation import built
from tests.support import ptx

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

# Launches one kernel on an emulated device. `nvrtc` is the real one, a library in its place, or none.
PROGRAM = """
import ctypes, os, sys
import numpy as np
from pathlib import Path
from echo.errors import KernelError
from echo.kernels import library
from tests.support import kernel_calls
from tests.kernels.cuda_emulation import Emulated

driver, kernels, places, nvrtc = sys.argv[1:]
nvrtc = library.cuda_places()["_ECHO_NVRTC"] if nvrtc == "real" else nvrtc
library.set_places(library.kernels_library(), places, nvrtc)
backend = Emulated(Path(driver), Path(kernels))
reason = library.why_not_on_cuda(0)
print(reason or "ready")
x, y = np.ones((2, 3, 4), np.float32), np.zeros((2, 3, 4), np.float32)
try:
    kernel_calls.call("sequence_reverse", [x, None], [y], backend="cuda")
    print(*backend.loads())
except KernelError as error:
    print(error)
"""
# A library that passes for NVRTC, of a version, which compiles or refuses.
NVRTC = """
#include <string.h>
int nvrtcVersion(int* major, int* minor) { *major = VERSION; *minor = 3; return 0; }
int nvrtcCreateProgram(void** p, const char* a, const char* b, int c, const char* const* d, const char* const* e) {
  *p = 0; return 0;
}
int nvrtcCompileProgram(void* p, int n, const char* const* options) { return RESULT; }
int nvrtcDestroyProgram(void** p) { return 0; }
int nvrtcGetPTXSize(void* p, size_t* to) { *to = 5; return 0; }
int nvrtcGetPTX(void* p, char* to) { strcpy(to, "fake"); return 0; }
int nvrtcGetProgramLogSize(void* p, size_t* to) { *to = 8; return 0; }
int nvrtcGetProgramLog(void* p, char* to) { strcpy(to, "a fault"); return 0; }
"""
MISSING = "no compiled CUDA kernels, and there is no NVRTC 11 to compile them: pip install nvidia-cuda-nvrtc-cu11"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    built()
    ptx.texts()


def launched(*places: Path, nvrtc: str = "") -> list[str]:
    """The lines that the program prints with these folders of PTX, the last of which is the cache."""
    command = [sys.executable, "-c", PROGRAM, str(built().driver), str(built().kernels)]
    done = subprocess.run(
        [*command, os.pathsep.join(map(str, places)), nvrtc], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def imitation(folder: Path, version: int = 11, result: int = 0) -> str:
    source, made = folder / "nvrtc.c", folder / "libnvrtc.so.11.2"
    source.write_text(NVRTC.replace("VERSION", str(version)).replace("RESULT", str(result)))
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{made.name}", "-o", str(made), str(source)], check=True)
    return str(made)


LAUNCHED = ["ready", "sum_rows_f32 sequence_reverse_f32"]


def test_installed_ptx_needs_no_compiler_and_no_cache(tmp_path: Path) -> None:
    assert launched(ptx.FOLDER, tmp_path / "cache") == LAUNCHED
    assert not (tmp_path / "cache").exists()


def test_without_ptx_and_nvrtc_a_device_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    for line in launched(tmp_path / "none", tmp_path / "cache"):
        assert MISSING in line


def test_nvrtc_compiles_the_families_that_are_launched_into_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    assert launched(tmp_path / "none", cache, nvrtc="real") == LAUNCHED
    kept = sorted(cache.iterdir())
    assert [path.name.partition("-")[0] for path in kept] == ["pointwise", "rows"]
    assert [path.read_text() for path in kept] == [ptx.texts()["pointwise"], ptx.texts()["rows"]]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert launched(tmp_path / "none", cache) == LAUNCHED  # from the cache, without NVRTC

    for path in kept:
        path.chmod(0o664)  # others could have written it
    assert all(MISSING in line for line in launched(tmp_path / "none", cache))
    for path in kept:
        path.chmod(0o600)
        path.write_text(path.read_text()[:-100])
    assert all(MISSING in line for line in launched(tmp_path / "none", cache))


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert launched(tmp_path / "cache", nvrtc="real") == LAUNCHED
    assert (tmp_path / "cache").read_text() == "a file"


@pytest.mark.parametrize(
    ("version", "result", "message"),
    [
        (10, 0, "expected NVRTC 11 to compile the CUDA kernels, got version 10.3"),
        (11, 6, "NVRTC does not compile the CUDA kernels of rows: a fault"),
        (11, 0, "sum_rows_f32 is not in the PTX of its family, rows"),
    ],
)
def test_an_nvrtc_that_does_not_serve_is_named(tmp_path: Path, version: int, result: int, message: str) -> None:
    assert message in launched(tmp_path / "cache", nvrtc=imitation(tmp_path, version, result))[0]


@pytest.mark.slow
def test_the_thread_keeps_its_locale(tmp_path: Path) -> None:
    program = PROGRAM + 'print(ctypes.CDLL(None).uselocale(None) == ctypes.c_int(-1).value or "another locale")\n'
    command = [sys.executable, "-c", program, str(built().driver), str(built().kernels), str(tmp_path), "real"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*LAUNCHED, "True"]


def test_every_kernel_of_the_ptx_is_emulated() -> None:
    emulated = ctypes.CDLL(str(built().kernels))
    assert [name for name in ptx.kernels() if not hasattr(emulated, f"emulate_{name}")] == []
    assert not hasattr(emulated, "emulate_no_kernel")
