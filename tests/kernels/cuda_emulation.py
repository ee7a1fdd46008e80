"""The CUDA kernels on the CPU: their source compiled with a shim, in a library that passes for NVIDIA's driver."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from echo.kernels import library
from tests.support import kernel_calls
from tests.support.kernel_calls import SKIP, WRITE

HERE = Path(__file__).resolve().parent / "emulation"
KERNELS = Path(__file__).resolve().parents[2] / "echo" / "kernels"
BUILDS = KERNELS.parents[1] / "build" / "emulated"
SOURCES = (".h", ".cc", ".cu", ".cuh")
DRIVER_VARIABLE = "_ECHO_CUDA_DRIVER"
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
EMULATED = ("-DECHO_EMULATED", "-DECHO_IN(family)=1")  # with the kernels of every family
# A GPU rounds a product and its sum once: so do emulated kernels where the processor can. What differs by that alone,
# such as what is left of a sum that cancels, shows here then. At -O1 g++ would inline too little, and contract nothing.
CONTRACTED = ("-mfma", "-ffp-contract=fast", "-fexpensive-optimizations", "-finline-small-functions")


@functools.lru_cache(maxsize=None)
def contraction() -> tuple[str, ...]:
    """The flags for products and sums that are rounded once; none where the processor has no such instruction."""
    try:
        has_fma = " fma " in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        has_fma = False
    return CONTRACTED if has_fma else ()


def compile_fibers(folder: Path, *more: str) -> Path:
    """The common part of every library of emulated kernels, as an object file."""
    _run("g++", *FLAGS, *more, "-c", str(HERE / "fibers.cc"), "-o", str(folder / "fibers.o"))
    return folder / "fibers.o"


def compile_driver(folder: Path) -> Path:
    """A ``libcuda.so.1``."""
    made = folder / "libcuda.so.1"
    _run("g++", *FLAGS, "-shared", "-Wl,-soname,libcuda.so.1", str(HERE / "driver.cc"), "-o", str(made), "-ldl")
    return made


def compile_blas(folder: Path, fibers: Path, version: int) -> Path:
    """A ``libcublas.so.VERSION``: a process that has loaded it by its path has a cuBLAS."""
    made = folder / f"libcublas.so.{version}"
    name = f"-Wl,-soname,{made.name}"
    _run("g++", *FLAGS, "-O2", "-shared", name, str(HERE / "blas.cc"), str(fibers), "-o", str(made))
    return made


def compile_kernels(folder: Path, fibers: Path, source: Path, name: str, *more: str) -> Path:
    """The kernels of a source file, which finds the others next to it or in ``echo/kernels/cuda``."""
    made = folder / f"{name}.so"
    includes = (f"-I{source.parent}", f"-I{HERE}", f"-I{KERNELS / 'cuda'}", f"-I{KERNELS}")
    unused = "-Wno-unused-function"
    _run(
        "g++", *FLAGS, *contraction(), unused, *more, "-shared", *EMULATED, *includes, "-x", "c++", str(source),
        "-x", "none", str(fibers), "-o", str(made),
    )  # fmt: skip
    return made


class Built(NamedTuple):
    """Everything that the tests compile once: an object file, a ``libcuda.so.1``, and the kernels."""

    fibers: Path
    driver: Path
    kernels: Path


def kept(make: Callable[[Path], object], *key: object) -> Path:
    """The folder of what ``make`` compiles into one, once for all processes, in ``build``, until a source changes.

    ``key`` tells it from what others compile of the same sources: flags, or texts of sources that are made.
    """
    folder = BUILDS / hashlib.sha256(repr((_digest(), key)).encode()).hexdigest()[:16]
    BUILDS.mkdir(parents=True, exist_ok=True)
    with open(BUILDS / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=BUILDS) as name:
                made = Path(name) / "made"
                made.mkdir()
                make(made)
                made.rename(folder)
    return folder


@functools.lru_cache(maxsize=None)
def built() -> Built:
    """The driver and all kernels: for many tests, so with more optimization than what is compiled for one."""
    flags = ("-O2",)

    def make(folder: Path) -> None:
        compile_driver(folder)
        compile_kernels(folder, compile_fibers(folder), KERNELS / "cuda" / "kernels.cu", "kernels", *flags)

    folder = kept(make, flags)
    return Built(folder / "fibers.o", folder / "libcuda.so.1", folder / "kernels.so")


@functools.lru_cache(maxsize=None)
def _digest() -> str:
    """A name for what the compiler reads, and for the compiler."""
    sources = [path for folder in (KERNELS, HERE) for path in folder.rglob("*") if path.suffix in SOURCES]
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(repr((FLAGS, contraction())).encode() + version)
    for path in sorted(sources):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")


@functools.lru_cache(maxsize=None)
def opened(driver: Path, kernels: ctypes.CDLL) -> ctypes.CDLL:
    """This driver, which is the one of that library of echo's from now on.

    Raises:
        RuntimeError: it has opened another one already.
    """
    loaded = ctypes.CDLL(str(driver), mode=ctypes.RTLD_GLOBAL)
    os.environ[DRIVER_VARIABLE] = str(driver)  # CUDA wheels of MXNet have loaded one under the usual name
    try:
        kernels.echo_cuda_ready(0)
    finally:
        del os.environ[DRIVER_VARIABLE]
    if not loaded.fake_was_entered():
        raise RuntimeError("echo's kernels run on another driver in this process")
    return loaded


class Emulated:
    """A backend of `benchmarks.gpu_cases` on NumPy arrays, with the settings of ``emulation/driver.cc``."""

    def __init__(self, driver: Path, kernels: Path) -> None:
        self.driver = opened(driver, library.kernels_library())
        self.driver.fake_launches.restype = self.driver.fake_loads.restype = ctypes.c_char_p
        self.driver.fake_stream.restype = ctypes.c_size_t
        self.driver.fake_place.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
        self.load(kernels)

    def load(self, kernels: Path) -> None:
        """Takes kernels from this library from now on, and from those before it what it lacks."""
        if self.driver.fake_kernels(str(kernels).encode()):
            raise RuntimeError(f"{kernels} cannot be loaded")

    def set(self, **settings: int) -> None:
        """Numbers of devices, their attributes, errors to return, the seed of the schedules."""
        for name, value in settings.items():
            self.driver.fake_set(name.encode(), value)

    def launches(self) -> str:
        """Since this was called before: a "k" for each kernel, a "c" for each that ran with all blocks at once."""
        made: str = self.driver.fake_launches().decode()
        self.driver.fake_forget_launches()
        return made

    def loads(self) -> list[str]:
        """The kernels that were loaded since the contexts are new."""
        return list(self.driver.fake_loads().decode().split())

    def place(self, array: Any) -> Any:
        return array

    def fetch(self, array: Any) -> Any:
        return array

    def blank(self, array: Any) -> None:
        array.fill(np.nan)

    def same(self, one: Any, two: Any) -> bool:
        return bool(one.tobytes() == two.tobytes())

    def call(self, kernel: str, inputs: list[Any], outputs: list[Any], req: list[int], params: list[float]) -> None:
        needed = kernel_calls.workspace_bytes(kernel, inputs, outputs, req, params, backend="cuda")
        room = np.full(needed + 64, 0xFF, np.uint8)  # NaN, as floats
        start = -room.ctypes.data % 64
        workspace = room[start : start + needed]
        kernel_calls.call(kernel, inputs, outputs, req, params, backend="cuda", workspace=workspace)
        assert (room[start + needed :] == 0xFF).all(), f"{kernel} wrote after its workspace"

    def run(self, kernel: str, inputs: Any, outputs: Any, req: Any = None, params: Any = ()) -> None:
        """The same as a `Runner` of `tests.kernels.cases`."""
        wanted = [SKIP if array is None else WRITE for array in outputs]
        self.call(kernel, list(inputs), list(outputs), list(req or wanted), list(params))
