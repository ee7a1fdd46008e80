"""Whether the sanitizers see what they are there for: faults made on purpose, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize import __main__ as sanitize
from tests.support import libraries

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("g++") and shutil.which("cmake")), reason="builds need g++ and cmake"),
    pytest.mark.skipif("ECHO_SANITIZED" in os.environ, reason="this process is sanitized itself"),
]

# relu of 4096 elements; the memory that it reads has half of them
BEHIND_THE_END = """
import ctypes
import numpy as np
from tests.support import kernel_calls
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
x, y, bits = np.ones(4096, np.float32), np.ones(4096, np.float32), np.ones(512, np.uint8)
raw = kernel_calls.raw_call("relu", [x], [y, bits], None, [])
raw.inputs[0].data = libc.malloc(4096 * 2)
kernel_calls.of_backend("cpu", "call")(ctypes.byref(raw))
print("not noticed")
"""

# Two threads write into one array. Python's lock orders calls that follow one another, and the sanitizer sees that: the
# barrier lets each pair of calls start together, and a call takes longer than the other thread needs to wake up.
TOGETHER = """
import threading
import numpy as np
from tests.support.kernel_calls import call
x, y, bits = np.ones(1 << 22, np.float32), np.ones(1 << 22, np.float32), [np.ones(1 << 19, np.uint8) for _ in "ab"]
together = threading.Barrier(2)
def write(own):
    for _ in range(20):
        together.wait()
        call("relu", [x], [y, own])
threads = [threading.Thread(target=write, args=(own,)) for own in bits]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("not noticed")
"""
FAULTS = {"address": (BEHIND_THE_END, "AddressSanitizer: heap-buffer-overflow"),
          "thread": (TOGETHER, "ThreadSanitizer: data race")}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_seen(kind: str) -> None:
    code, report = FAULTS[kind]
    environment = sanitize.environment(kind, libraries.KERNELS)
    command = [*sanitize.AT_ITS_PLACE, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert report in done.stderr, done.stderr[-2000:]
    assert done.returncode != 0
    assert "not noticed" not in done.stdout
