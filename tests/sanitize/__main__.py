"""See the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent


class Kind(NamedTuple):
    """A build: flags of the compiler, options of CMake, libraries to load first, variables of the command."""

    flags: str
    options: tuple[str, ...]
    preload: tuple[str, ...]
    environment: dict[str, str]


# What is not ours is not instrumented: Python and MXNet keep what they have at the end (leaks are not told), and hand
# memory to each other that one allocated and the other frees. The hook knows MXNet's classes without their types: vptr.
# Stacks on the heap, for uses after a return, are aligned too little for wide registers by GCC up to 13 (PR 110027).
ADDRESS = Kind(
    "-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all",
    (),
    ("libasan.so", "libubsan.so"),
    {
        "ASAN_OPTIONS": ":".join(
            f"{option}=0"
            for option in (
                "detect_leaks", "alloc_dealloc_mismatch", "verify_asan_link_order", "detect_stack_use_after_return",
            )
        ),
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
)
# libgomp synchronizes by futexes that the sanitizer does not see, so that each region would be a race: kernels are
# built without OpenMP, and what runs them on several threads is MXNet's engine.
THREAD = Kind(
    "-fsanitize=thread",
    ("-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON",),
    ("libtsan.so",),
    {
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:report_signal_unsafe=0:die_after_fork=0",
    },
)
KINDS = {"address": ADDRESS, "thread": THREAD}


def compiler() -> str:
    """GCC's C++ compiler.

    Raises:
        LookupError: there is none.
    """
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None or shutil.which("cmake") is None:
        raise LookupError("g++ and cmake are needed: sudo apt install g++ cmake (or python -m pip install cmake)")
    return found


def build(name: str) -> Path:
    """The folder with the libraries of a kind.

    Raises:
        subprocess.CalledProcessError: a build failed, and said why.
    """
    kind, folder = KINDS[name], ROOT / "build" / "sanitize"
    made, installed = folder / name, folder / f"{name}-libraries"
    flags = f"-O1 -g -fno-omit-frame-pointer {kind.flags}"
    subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(made), f"-DCMAKE_CXX_COMPILER={compiler()}", f"-DCMAKE_CXX_FLAGS={flags}",
         "-DCMAKE_BUILD_TYPE=None", *kind.options], check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subprocess.run(["cmake", "--build", str(made), "--parallel", "2"], check=True, stdout=subprocess.DEVNULL)
    installed.mkdir(exist_ok=True)
    for library in made.glob("libecho_*.so"):
        shutil.copy(library, installed)
    return installed


def runtime(name: str) -> str:
    """The path of a sanitizer's library."""
    command = [compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(name: str) -> dict[str, str]:
    """The variables under which a command takes the libraries of a kind."""
    kind = KINDS[name]
    paths = [str(FOLDER / "site"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **kind.environment,
        "ECHO_SANITIZED": str(build(name)),
        "LD_PRELOAD": ":".join(map(runtime, kind.preload)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONMALLOC": "malloc",
    }


def main() -> int:
    """Runs a command; its exit status."""
    name, *command = sys.argv[1:]
    if command[:1] == ["python"]:
        command[0] = sys.executable
    # the layout of a process's memory that Linux draws may leave no room for the sanitizer's own
    return subprocess.run(["setarch", "--addr-no-randomize", *command], env=environment(name), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
