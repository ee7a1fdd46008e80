"""The grid barrier alone: compiled by the NVRTC that torch brings along, launched through the driver."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from benchmarks.gpu_library import KERNELS
from echo.system.cuda import of_wheels

SOURCE = Path(__file__).resolve().with_name("gpu_barrier.cu")
_NVRTC = re.compile(r"libnvrtc\.so\.\d+")
_LOG, _LOG_BYTES = 5, 6  # options of the driver's compiler: where it writes what is wrong
THREADS = 256  # kThreads of arguments.h


class CudaError(RuntimeError):
    """NVRTC or the driver refuses something; the message says what."""


class Barriers(ctypes.Structure):
    """The argument of the kernel."""

    _fields_ = (("arrived", ctypes.c_void_p), ("steps", ctypes.c_longlong))


def compiled(nvrtc: ctypes.CDLL, capability: tuple[int, int]) -> bytes:
    """The kernel as code for devices of this compute capability: PTX of a newer NVRTC is refused by an older driver.

    Raises:
        CudaError: with the compiler's log.
    """
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = SOURCE.read_bytes()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, SOURCE.name.encode(), 0, None, None):
        raise CudaError("NVRTC does not start")
    folders = [f"--include-path={folder}".encode() for folder in (KERNELS / "cuda", KERNELS)]
    words = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode(), b"--std=c++17", *folders]
    failed = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
    what = "ProgramLog" if failed else "CUBIN"
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, content)
    if failed:
        raise CudaError(content.value.decode())
    return content.raw


def nvrtc_at_hand() -> ctypes.CDLL:
    """NVRTC of NVIDIA's pip wheels, or of the system.

    Raises:
        CudaError: there is none.
    """
    wheels = {name: path for name, path in of_wheels().items() if _NVRTC.match(name)}
    for library in [*map(str, wheels.values()), "libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.13"]:
        try:
            return ctypes.CDLL(library)
        except OSError:
            continue
    raise CudaError("there is no libnvrtc.so, which torch for CUDA brings along")


class BarrierKernel:
    """The kernel, loaded into the current context of the driver.

    Raises:
        CudaError: the driver refuses it.
    """

    def __init__(self, image: bytes, driver: ctypes.CDLL) -> None:
        self.driver, self.function, module = driver, ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(4096)
        options = (ctypes.c_int * 2)(_LOG, _LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        self._check("cuModuleLoadDataEx", ctypes.byref(module), image, 2, options, values, said=log)
        self._check("cuModuleGetFunction", ctypes.byref(self.function), module, b"grid_barriers")

    def launch(self, blocks: int, steps: int, counter: int, stream: int) -> None:
        """Enqueues as many barriers of as many blocks; ``counter`` is the address of a number that is 0."""
        argument = Barriers(counter, steps)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        sizes = map(ctypes.c_uint, (blocks, 1, 1, THREADS, 1, 1, 0))
        self._check("cuLaunchCooperativeKernel", self.function, *sizes, ctypes.c_void_p(stream), arguments)

    def _check(self, name: str, *arguments: Any, said: Any = None) -> None:
        result = getattr(self.driver, name)(*arguments)
        if result:
            raise CudaError(f"{name} returns {result}" + (f": {said.value.decode()}" if said else ""))
