"""The kernels under NVIDIA's compute-sanitizer, where it is there: reads and writes out of bounds, races, barriers.

``python -m benchmarks.gpu_sanitizer LIBRARY`` is what it watches: one small case of each kernel, and a layer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np

from benchmarks.gpu_cases import Case, cases_of, check
from benchmarks.gpu_clock import Clock, Row

ROOT = Path(__file__).resolve().parents[1]
WATCHED = (sys.executable, "-m", "benchmarks.gpu_sanitizer")
TOOLS = ("memcheck", "racecheck", "synccheck")
_FAULT = 99  # its exit status where it finds something
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")


def sanitizer_rows(library: Path, clock: Clock, command: Sequence[str] = WATCHED) -> Iterator[Row]:
    """A row for each tool; "failed" where it finds something, or the program fails by itself, which is told apart."""
    found = shutil.which("compute-sanitizer")
    if found is None:
        yield {"section": "sanitizer", "skipped": "compute-sanitizer is not on the path"}
        return
    for tool in clock.take(TOOLS):
        words = [found, "--tool", tool, "--error-exitcode", str(_FAULT), *command, str(library)]
        yield {"section": "sanitizer", "tool": tool, **_watched(words, clock.seconds)}


def _watched(words: Sequence[str], seconds: float) -> Row:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=max(1.0, seconds), cwd=ROOT)
    except subprocess.TimeoutExpired:
        return {"skipped": f"not done after {seconds:.0f} s"}
    summary = _SUMMARY.findall(done.stdout)
    said = {"summary": summary[-1]} if summary else {}
    if done.returncode == 0:
        return said
    # the program's exit status counts before the tool's findings
    finds = done.returncode == _FAULT or (bool(summary) and re.match(r"0\D", summary[-1]) is None)
    whose = "found by the tool" if finds else f"the watched program failed (exit status {done.returncode})"
    return {**said, "failed": f"{whose}: {(done.stdout + done.stderr)[-2000:]}"}


def small_cases() -> list[Case]:
    """The first case of each kernel that has several elements, and a layer of several blocks and steps."""
    usable = [case for case in cases_of(1) if min(case.dims.values()) > 0 and 6 < max(case.dims.values()) < 100]
    first = {case.kernel: case for case in reversed(usable)}
    layer = Case("lstm_layer", {"T": 3, "B": 5, "I": 6, "H": 40}, {"reverse": 0})
    return [*(case for name, case in sorted(first.items()) if name != layer.kernel), layer]


def run_all(device: Any) -> None:
    """Each of the cases in both types.

    Raises:
        AssertionError: a result is wrong.
    """
    for number, case in enumerate(small_cases()):
        for dtype in ("float32", "float16"):
            check(case, dtype, device, np.random.default_rng(number))


def main() -> None:
    """On the first CUDA device, with the library that is named."""
    from benchmarks.gpu_device import Device
    from benchmarks.gpu_library import using_library

    with using_library(Path(sys.argv[1])):
        run_all(Device())


if __name__ == "__main__":
    main()
