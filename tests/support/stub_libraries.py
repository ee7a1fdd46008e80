"""Shared libraries of a few bytes, laid out as NVIDIA's pip wheels and MXNet's CUDA wheels lay out theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Sequence

# The libraries that libmxnet.so of MXNet 1.9.1's wheels requires.
ASKED = {
    "cu102": ("libcudart.so.10.2", "libcudnn.so.8", "libcublas.so.10", "libcufft.so.10", "libcusolver.so.10",
              "libcurand.so.10", "libnvrtc.so.10.2", "libnccl.so.2", "libnvToolsExt.so.1", "libcuda.so.1"),
    "cu112": ("libcudart.so.11.0", "libcudnn.so.8", "libcublas.so.11", "libcufft.so.10", "libcusolver.so.11",
              "libcurand.so.10", "libnvrtc.so.11.2", "libnccl.so.2", "libnvToolsExt.so.1", "libcuda.so.1"),
}  # fmt: skip
ASKED["cu117"] = (*ASKED["cu112"], "libcusparse.so.11")
# The wheels that have them, by the start of the library's name, and what else they need of each other.
WHEELS = {
    "libcudart": "cuda_runtime", "libcudnn": "cudnn", "libcublas": "cublas", "libcufft": "cufft",
    "libcusolver": "cusolver", "libcurand": "curand", "libnvrtc": "cuda_nvrtc", "libnccl": "nccl",
    "libnvToolsExt": "nvtx", "libcusparse": "cusparse",
}  # fmt: skip
NEEDS = {"libcusolver": ("libcublas", "libcusparse"), "libcublas": ("libcublasLt",)}


def stub(path: Path, number: int, needed: Sequence[Path] = (), *flags: str) -> Path:
    """A library with the function ``number_NAME``, which needs others by their names and says not where they are.

    Raises:
        subprocess.CalledProcessError: the compiler failed, and said why.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(f"int number_{path.name.split('.')[0]}(void) {{ return {number}; }}\n")
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed", *flags, "-o", str(path)]
    subprocess.run([*command, str(source), *map(str, needed)], check=True, timeout=60)
    source.unlink()
    return path


def wheels(site: Path, names: Sequence[str]) -> dict[str, Path]:
    """NVIDIA's wheels with these libraries, and with those that they need, in a folder of packages."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        stem, _, version = name.partition(".so.")
        if name not in made:
            others = [make(f"{other}.so.{version}") for other in NEEDS.get(stem, ())]
            folder = WHEELS.get(stem, "cublas")  # which has libcublasLt, too
            made[name] = stub(site / "nvidia" / folder / "lib" / name, 1, others)
        return made[name]

    for name in names:
        make(name)
    return made


def mxnet(site: Path, needed: Sequence[Path], *flags: str) -> Path:
    """A package mxnet whose library needs others and is loaded by its import, as MXNet's is."""
    library = stub(site / "mxnet" / "libmxnet.so", 0, needed, *flags)
    text = f"import ctypes\n__version__ = '1.9.1'\nctypes.CDLL({str(library)!r})\n"
    (site / "mxnet" / "__init__.py").write_text(text)
    return library
