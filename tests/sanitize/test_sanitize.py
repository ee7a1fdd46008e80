"""Whether the sanitizers see what they are there for: faults made on purpose, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import libraries
from tests.sanitize import __main__ as sanitize

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
from echo.kernels import library
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
x, y, bits = np.ones(4096, np.float32), np.ones(4096, np.float32), np.ones(512, np.uint8)
raw = library._call_of("relu", [x], [y, bits], None, [])
raw.inputs[0].data = libc.malloc(4096 * 2)
library._of_backend("cpu", "call")(ctypes.byref(raw))
print("not noticed")
"""

# two threads write into one array
TOGETHER = """
import threading
import numpy as np
from echo.kernels import call
x, y, bits = np.ones(1 << 16, np.float32), np.ones(1 << 16, np.float32), [np.ones(1 << 13, np.uint8) for _ in "ab"]
threads = [threading.Thread(target=lambda b=b: [call("relu", [x], [y, b]) for _ in range(50)]) for b in bits]
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
