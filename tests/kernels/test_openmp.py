"""Kernels share MXNet's libgomp where there is one, and run in one thread, with the same bits, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.libraries import ROOT, compiler

# Answers as a machine without libgomp does.
HIDDEN = """
#include <dlfcn.h>
#include <string.h>
extern "C" void* dlopen(const char* name, int flags) {
  static void* (*const real)(const char*, int) = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  return name && strstr(name, "libgomp") ? 0 : real(name, flags);
}
"""
# Products on several threads, with barriers between their parts, and chunks of rows.
PROGRAM = """
import hashlib, os
from tests.support.kernel_calls import call
from tests.kernels.cases import draw, run_backward, run_forward

threads = lambda: len(os.listdir("/proc/self/task"))
digest = hashlib.sha256()
cases = draw("lstm_layer", {"T": 3, "B": 64, "I": 130, "H": 70}), draw("layer_norm", {"N": 900, "H": 70})
before = threads()
for case in cases:
    outputs = run_forward(case, call)
    for array in (*outputs, *run_backward(case, outputs, call)):
        digest.update(array.tobytes() if array is not None else b"")
with open("/proc/self/maps") as maps:
    print(threads() - before, digest.hexdigest(), "libgomp.so.1" in maps.read())
"""
pytestmark = pytest.mark.skipif(
    "LD_PRELOAD" in os.environ or "ECHO_LIBRARIES" in os.environ, reason="sanitizers are without OpenMP"
)


def run(**environment: str) -> tuple[int, str, bool]:
    """Threads that the kernels started, a digest of what they computed, and whether libgomp was there."""
    command, variables = [sys.executable, "-c", PROGRAM], {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=variables)
    started, digest, there = done.stdout.split()
    return int(started), digest, there == "True"


def test_threads_are_those_of_libgomp_and_change_no_bit(tmp_path: Path) -> None:
    one, three = run(OMP_NUM_THREADS="1"), run(OMP_NUM_THREADS="3")
    assert (one[0], one[2]) == (0, True)
    assert (three[0], three[2]) == (2, True)
    (tmp_path / "hidden.cc").write_text(HIDDEN)
    hidden = tmp_path / "hidden.so"
    command = [compiler(), "-shared", "-fPIC", "-o", str(hidden), str(tmp_path / "hidden.cc"), "-ldl"]
    subprocess.run(command, check=True)
    none = run(OMP_NUM_THREADS="3", LD_PRELOAD=str(hidden))
    assert (none[0], none[2]) == (0, False)
    assert one[1] == three[1] == none[1]
