"""The fake CUDA libraries that the libmxnet.so of a CUDA wheel asks for, around one core (`core.h`).

Each has the name and the version nodes of NVIDIA's, and a function for every symbol that MXNet wants of it: those that
the core has, the others succeed and are counted.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Sequence

HERE = Path(__file__).resolve().parent
_SONAME = re.compile(r"lib(cuda|cudart|cudnn|cublas|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvToolsExt)\.so\.")
_SYMBOL = re.compile(r"(__cuda|cu[A-Zdbfrs]|nccl|nvrtc|nvtx)")
_PREFIXES = ("cudnn", "cublas", "cufft", "curand", "cusolver", "cusparse", "nccl", "nvrtc")
# Functions of NVIDIA's libraries that echo looks up by name: where, and in which library.
_LOOKED_UP = re.compile(r'(?:find\(library, "|\bcuda\.)(\w+)')
_LOOKING = {
    "kernels/cuda/driver.cc": "libcuda.so.", "kernels/cuda/blas.cc": "libcublas.so.", "system/cuda.py": "libcuda.so.",
}  # fmt: skip
_MAKES_HANDLE = re.compile(
    r"^(cudnnCreate|cublasCreate|curandCreateGenerator|cusolverDnCreate|cudaGraphInstantiate|nvrtcCreateProgram)"
)


def build(libmxnet: Path, folder: Path) -> None:
    """Builds the libraries for this libmxnet.so into a folder.

    Raises:
        RuntimeError: a compiler or a tool of binutils fails; the message has what it printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    core = folder / "libfakecuda_core.so"
    sources = [str(path) for path in sorted(HERE.glob("*.cc"))]
    _run("g++", "-std=c++17", "-O2", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden", *sources, "-o", str(core),
         "-ldl", "-pthread")  # fmt: skip
    lines = _run("nm", "-D", "--defined-only", str(core)).splitlines()
    written = {line.split()[-1] for line in lines}
    for soname, symbols in _wanted(libmxnet).items():
        _library(folder, soname, symbols, written)


def _wanted(libmxnet: Path) -> dict[str, dict[str, str]]:
    """The version of each function that is wanted, empty where it has none, by the name of its library."""
    needed = re.findall(r"NEEDED\s+(\S+)", _run("objdump", "-p", str(libmxnet)))
    wanted: dict[str, dict[str, str]] = {soname: {} for soname in needed if _SONAME.match(soname)}
    for line in _run("readelf", "--dyn-syms", "-W", str(libmxnet)).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] != "UND":
            continue
        name, _, version = fields[7].partition("@")
        soname = version if version in wanted else "" if version else _library_of(name, list(wanted))
        if soname:
            wanted[soname][name] = version
    wanted.setdefault("libcuda.so.1", {})
    for source, prefix in _LOOKING.items():
        soname = next(soname for soname in wanted if soname.startswith(prefix))
        for name in _LOOKED_UP.findall((HERE.parents[1] / "echo" / source).read_text(encoding="utf-8")):
            wanted[soname].setdefault(name, "")
    return wanted


def _library_of(name: str, sonames: Sequence[str]) -> str:
    """The library that has a function without a version, by its name."""
    if not _SYMBOL.match(name):
        return ""
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    if not prefix:
        others = (("cudart", ("cuda", "__cuda")), ("nvToolsExt", "nvtx"), ("cuda", "cu"))
        prefix = next(other for other, starts in others if name.startswith(starts))
    return next((soname for soname in sonames if soname.startswith(f"lib{prefix}.so.")), "")


def _library(folder: Path, soname: str, symbols: dict[str, str], written: set[str]) -> None:
    source, script = folder / f"{soname}.s", folder / f"{soname}.map"
    plain = [name for name in sorted(symbols) if f"fake_{name}" not in written]
    lines = [".text"]
    for name in sorted(symbols):
        lines += [f".globl {name}", f".type {name},@function", f"{name}:"]
        if name not in plain:
            lines.append(f"jmp fake_{name}@PLT")
        elif _MAKES_HANDLE.match(name):  # the name goes in front of the arguments
            lines += ["movq %rdi, %rsi", f"leaq .Ln_{name}(%rip), %rdi", "jmp fake_create@PLT"]
        else:
            lines += [f"leaq .Ln_{name}(%rip), %rdi", "jmp fake_default@PLT"]
        lines.append(f".size {name},.-{name}")
    lines.append(".section .rodata")
    lines += [f'.Ln_{name}: .asciz "{name}"' for name in plain]
    lines.append('.section .note.GNU-stack,"",@progbits')
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    version = next((version for version in symbols.values() if version), "")
    script.write_text(f"{version} {{ global: *; }};\n", encoding="utf-8")
    _run("g++", "-shared", "-fPIC", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", "-Wl,-rpath,$ORIGIN",
         str(source), "-o", str(folder / soname), f"-L{folder}", "-lfakecuda_core")  # fmt: skip
    source.unlink()
    script.unlink()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout
