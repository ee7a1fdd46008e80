"""The kernels' library built by g++ alone, for machines on which echo is not installed."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

from echo.kernels import library
from tests.support import kernel_calls

KERNELS = Path(__file__).resolve().parents[1] / "echo" / "kernels"


def build_library(folder: Path, *flags: str) -> Path:
    """Compiles the CUDA part of ``libecho_kernels.so`` into a folder; ``flags`` come after the usual ones.

    Raises:
        RuntimeError: with what g++ wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    common = ["g++", "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", f'-DECHO_CUDA_FOLDER="{KERNELS / "cuda"}"']
    common += [f"-I{KERNELS / 'include'}", f"-I{KERNELS}"]
    sources = [*sorted(KERNELS.glob("*.cc")), *sorted(KERNELS.glob("cuda/*.cc"))]
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda source, made: _run(*common, *flags, "-c", str(source), "-o", str(made)), sources, objects))
    made = folder / "libecho_kernels.so"
    _run("g++", "-shared", "-o", str(made), *map(str, objects), "-ldl", "-lpthread")
    return made


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")


@contextlib.contextmanager
def using_library(path: Path) -> Iterator[None]:
    """Calls of kernels go to this library."""
    before = library.kernels_library
    opened = ctypes.CDLL(str(path))
    library.set_places(opened, *library.cuda_places().values())
    library.kernels_library = lambda: opened  # type: ignore[assignment]
    kernel_calls.of_backend.cache_clear()
    try:
        yield
    finally:
        library.kernels_library = before
        kernel_calls.of_backend.cache_clear()
