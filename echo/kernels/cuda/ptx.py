"""``make ptx``: kernels.ptx from kernels.cu, and what ptxas makes of it.

NVRTC 11.8 (the package ``nvidia-cuda-nvrtc-cu11``) compiles for compute_50, and the result is stamped with the oldest
version of PTX that knows its instructions: drivers from CUDA 9.0 on turn it into code for every GPU since Maxwell. It
is the same on every machine; its first line names its sources' hash.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PTX = HERE / "kernels.ptx"
OPTIONS = (b"--gpu-architecture=compute_50", b"--std=c++17")
VERSION = "6.0"  # because of shfl.sync; NVRTC writes its own, 7.8, which drivers before R520 refuse
# Those that MXNet's CUDA wheels have code for, and newer ones.
OF_WHEELS = ("sm_50", "sm_52", "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86")
ARCHITECTURES = (*OF_WHEELS, "sm_89", "sm_90", "sm_100", "sm_120")
# Packages with NVIDIA's tools, and the folders in which they keep them.
PACKAGES = {"triton": "backends/nvidia/bin", "nvidia.cuda_nvcc": "bin", "nvidia.cu13": "bin"}


class PtxError(RuntimeError):
    """The compiler is missing, or refuses the sources."""


def sources() -> list[Path]:
    """kernels.cu and what it includes, in the order of their names."""
    device = [path for path in HERE.iterdir() if path.suffix in (".cu", ".cuh") or path.name == "arguments.h"]
    return sorted([*device, HERE.parent / "formulas.h"], key=lambda path: path.name)


def sources_hash() -> str:
    """SHA-256 over names and contents of the sources."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def first_line() -> str:
    """The first line of a kernels.ptx that was made from the present sources."""
    return f"// Made by `make ptx` from sources with SHA-256 {sources_hash()}"


def nvrtc_path() -> Path | None:
    """NVRTC 11.8 where its package is installed."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    folders = spec.submodule_search_locations if spec else None
    return next((path for folder in folders or () for path in Path(folder).glob("lib/libnvrtc.so.11.2")), None)


def compile_ptx(nvrtc: Path) -> str:
    """The text of kernels.ptx.

    Raises:
        PtxError: with the compiler's log.
    """
    library = ctypes.CDLL(str(nvrtc))
    headers = [path for path in sources() if path.name != "kernels.cu"]
    contents = (ctypes.c_char_p * len(headers))(*[path.read_bytes() for path in headers])
    names = (ctypes.c_char_p * len(headers))(*[path.name.encode() for path in headers])
    program = ctypes.c_void_p()
    code = (HERE / "kernels.cu").read_bytes()
    if library.nvrtcCreateProgram(ctypes.byref(program), code, b"kernels.cu", len(headers), contents, names):
        raise PtxError("NVRTC does not start")
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    if library.nvrtcCompileProgram(program, len(OPTIONS), options):
        raise PtxError(_text(library, "ProgramLog", program))
    return first_line() + "\n" + _stripped(_text(library, "PTX", program))


def _text(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def _stripped(ptx: str) -> str:
    """Without comments and indentation, which are a fifth of it, and of `VERSION`; lines of the kernels' names stay.

    Raises:
        PtxError: there is no one line with a version.
    """
    lines = (re.sub(r"\s+", " ", line.partition("//")[0]).strip() for line in ptx.splitlines())
    text = "".join(line + "\n" for line in lines if line)
    stamped, times = re.subn(r"^\.version .*$", f".version {VERSION}", text, flags=re.MULTILINE)
    if times != 1:
        raise PtxError(f"expected one line with a version, got {times}")
    return stamped


def assemble(ptxas: str, ptx: Path, architecture: str) -> dict[str, tuple[int, int]]:
    """Registers, and bytes of spills and stack, of each kernel.

    Raises:
        PtxError: with the assembler's message.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [ptxas, f"-arch={architecture}", "-v", str(ptx), "-o", f"{folder}/kernels.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PtxError(done.stderr)
    usage_of = {}
    for part in done.stderr.split("Compiling entry function ")[1:]:
        name = part.split("'")[1]
        registers = re.search(r"Used (\d+) registers", part)
        memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        assert registers, part
        usage_of[name] = (int(registers.group(1)), sum(map(int, memory.groups())) if memory else 0)
    return usage_of


def tools(name: str) -> list[str]:
    """Every program of that name: on the PATH, and in packages (``make sass`` installs one)."""
    paths = [shutil.which(name)]
    for package, folder in PACKAGES.items():
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        roots = spec.submodule_search_locations if spec else None
        paths += [str(Path(root) / folder / name) for root in roots or ()]
    return [path for path in paths if path and os.access(path, os.X_OK)]


def known_architectures(ptxas: str) -> list[str]:
    """Returns the entries of `ARCHITECTURES` that this ptxas assembles for."""
    text = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=False).stdout
    return [architecture for architecture in ARCHITECTURES if f"'{architecture}'" in text]


def assemblers() -> dict[str, str]:
    """For each architecture that some installed ptxas knows: the first ptxas that does."""
    installed = reversed(tools("ptxas"))
    first = {architecture: ptxas for ptxas in installed for architecture in known_architectures(ptxas)}
    return {architecture: first[architecture] for architecture in ARCHITECTURES if architecture in first}


def report(assemblers: dict[str, str]) -> bool:
    """Prints what each ptxas makes of kernels.ptx for its architecture: whether nothing spills."""
    print(f"{PTX.name}: {PTX.stat().st_size} bytes")
    clean = True
    for architecture, ptxas in assemblers.items():
        kernels = assemble(ptxas, PTX, architecture)
        most = max(kernels, key=lambda name: kernels[name][0])
        spills = {name: spilled for name, (_, spilled) in kernels.items() if spilled}
        clean = clean and not spills
        print(f"{architecture}: {len(kernels)} kernels, {kernels[most][0]} registers at most ({most}), spills {spills}")
    missing = [architecture for architecture in ARCHITECTURES if architecture not in assemblers]
    if missing:
        print(f"not looked at, since no ptxas here knows them (`make sass` installs one): {', '.join(missing)}")
    return clean


def main() -> int:
    """Makes kernels.ptx, or compares it with what its sources give."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    nvrtc = nvrtc_path()
    if nvrtc is None:
        print("error: NVRTC is needed: python -m pip install nvidia-cuda-nvrtc-cu11==11.8.89", file=sys.stderr)
        return 1
    text = compile_ptx(nvrtc)
    if check and PTX.read_text() != text:
        print("error: kernels.ptx is not what its sources give: run `make ptx`", file=sys.stderr)
        return 1
    if not check:
        PTX.write_text(text)
    return 0 if report(assemblers()) else 1


if __name__ == "__main__":
    sys.exit(main())
