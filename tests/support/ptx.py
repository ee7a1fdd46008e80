"""``make ptx``: the PTX of the CUDA kernels, a file a family, and what ptxas makes of it.

    python -m tests.support.ptx             # writes the files that are missing, or of other sources
    python -m tests.support.ptx --report    # and prints registers and spills for every architecture

The kernels' library has their sources inside and compiles them by NVRTC 11.8 (``nvidia-cuda-nvrtc-cu11``) for compute
capability 5.0, stamped with the oldest version of PTX that knows its instructions: drivers from CUDA 9.0 on turn it
into code for every GPU since Maxwell. Wheels contain the files; an installation without them compiles a family when it
is first launched.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterable

from echo.errors import EchoError
from echo.kernels import library
from echo.native import function

KERNELS = Path(__file__).resolve().parents[2] / "echo" / "kernels"
CUDA, FOLDER = KERNELS / "cuda", KERNELS / "ptx"
# Those that MXNet's CUDA wheels have code for, and newer ones.
OF_WHEELS = ("sm_50", "sm_52", "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86")
ARCHITECTURES = (*OF_WHEELS, "sm_89", "sm_90", "sm_100", "sm_120")
# Packages with NVIDIA's tools, and the folders in which they keep them.
PACKAGES = {"triton": "backends/nvidia/bin", "nvidia.cuda_nvcc": "bin", "nvidia.cu13": "bin"}


class PtxError(RuntimeError):
    """The assembler refuses the PTX."""


def sources() -> list[Path]:
    """The files of the CUDA kernels: families, and what they include."""
    device = [path for path in CUDA.iterdir() if path.suffix == ".cuh" or path.name == "arguments.h"]
    return sorted([*device, KERNELS / "formulas.h"], key=lambda path: path.name)


def ptx_files() -> dict[str, str]:
    """For each family of CUDA kernels, the name of the file with its PTX, which differs with the sources."""
    names: bytes = function(library.kernels_library(), "echo_cuda_ptx_files", ctypes.c_char_p)()
    return {name.partition("-")[0]: name for name in names.decode().split()}


def put(family: str, folder: Path = FOLDER) -> Path:
    """Returns the file of a family's PTX, after compiling it if it is missing or has other sources.

    Raises:
        KernelError: there is no NVRTC 11, or it refuses the sources, or the folder cannot be written to.
    """
    write = function(library.kernels_library(), "echo_cuda_put_ptx", ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
    if write(family.encode(), os.fsencode(folder)):
        raise library._error()
    return folder / ptx_files()[family]


@functools.lru_cache(maxsize=None)
def texts() -> dict[str, str]:
    """The PTX of each family.

    Raises:
        KernelError: a family is not there and cannot be compiled.
    """
    return {family: put(family).read_text(encoding="ascii") for family in ptx_files()}


@functools.lru_cache(maxsize=None)
def kernels() -> dict[str, str]:
    """For each kernel, PTX with no other kernel.

    Raises:
        KernelError: a family is not there and cannot be compiled.
    """
    found = {}
    for text in texts().values():
        head, *entries = re.split(r"^(?=\.visible \.entry )", text, flags=re.MULTILINE)
        found.update({re.split(r"[ (]", entry, maxsplit=3)[2]: head + entry for entry in entries})
    return found


def joined(names: Iterable[str]) -> str:
    """Returns one text of PTX with these kernels, as a family's file.

    Raises:
        KernelError: a family is not there and cannot be compiled.
    """
    parts = [kernels()[name].split(".visible", 1) for name in names]
    heads = dict.fromkeys(line for head, _ in parts for line in head.splitlines())
    return "".join(line + "\n" for line in heads) + "".join(f".visible{body}" for _, body in parts)


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


def report(assemblers: dict[str, str], paths: list[Path]) -> bool:
    """Prints what each ptxas makes of these files for its architecture: whether nothing spills."""
    clean = True
    for architecture, ptxas in assemblers.items():
        usage = {name: row for path in paths for name, row in assemble(ptxas, path, architecture).items()}
        most = max(usage, key=lambda name: usage[name][0])
        spills = {name: spilled for name, (_, spilled) in usage.items() if spilled}
        clean = clean and not spills
        print(f"{architecture}: {len(usage)} kernels, {usage[most][0]} registers at most ({most}), spills {spills}")
    missing = [architecture for architecture in ARCHITECTURES if architecture not in assemblers]
    if missing:
        print(f"not looked at, since no ptxas here knows them (`make sass` installs one): {', '.join(missing)}")
    return clean


def main() -> int:
    """Compiles the families of which `FOLDER` has no file, and removes files of other sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="print registers and spills for every architecture")
    options = parser.parse_args()
    try:
        paths = []
        for number, family in enumerate(ptx_files(), 1):
            print(f"CUDA kernels {number}/{len(ptx_files())}: {family}", flush=True)
            paths.append(put(family))
    except EchoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in set(FOLDER.glob("*.ptx")) - set(paths):
        path.unlink()
    return 0 if not options.report or report(assemblers(), paths) else 1


if __name__ == "__main__":
    sys.exit(main())
