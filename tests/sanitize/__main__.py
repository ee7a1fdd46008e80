"""See the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Sequence

from tests.support import libraries


class Kind(NamedTuple):
    """A build: flags of the compiler, options of CMake, libraries to load first, variables of the command."""

    flags: str
    options: tuple[str, ...]
    preload: tuple[str, ...]
    environment: dict[str, str]


# Foreign code is not instrumented: Python and MXNet keep what they have at the end (leaks are not told), and hand
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
                "detect_leaks",
                "alloc_dealloc_mismatch",
                "verify_asan_link_order",
                "detect_stack_use_after_return",
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
# The layout of a process's memory that Linux draws may leave no room for the sanitizer's own.
AT_ITS_PLACE = ("setarch", "--addr-no-randomize")


def build(name: str, targets: Sequence[str] = libraries.ALL) -> Path:
    """The folder with the libraries of a kind that are ``targets``.

    Raises:
        subprocess.CalledProcessError: a build failed, and said why.
    """
    kind = KINDS[name]
    return libraries.build(Path("sanitize", name), f"-fno-omit-frame-pointer {kind.flags}", kind.options, targets)


def runtime(name: str) -> str:
    """The path of a sanitizer's library."""
    command = [libraries.compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(name: str, targets: Sequence[str] = libraries.ALL) -> dict[str, str]:
    """The variables under which a command takes the libraries of a kind."""
    kind = KINDS[name]
    return {
        **os.environ,
        **libraries.environment(build(name, targets)),
        **kind.environment,
        "ECHO_SANITIZED": name,
        "LD_PRELOAD": ":".join(map(runtime, kind.preload)),
        "PYTHONMALLOC": "malloc",
    }


def main() -> int:
    """Runs a command; its exit status."""
    name, *command = sys.argv[1:]
    if command[:1] == ["python"]:
        command[0] = sys.executable
    return subprocess.run([*AT_ITS_PLACE, *command], env=environment(name), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
