"""The results of MXNet's own run of a program in another process: under variables that a process reads but once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

from fuzz.program import Program


def stock_run(kind: str, program: Program, **environment: str) -> Iterator[Any]:
    """The run of a program without echo under these variables; nothing where MXNet refuses it, or ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.json"
        path.write_text(program.to_json())
        command = [sys.executable, "-m", "fuzz.child", kind, str(path), "stock"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        ended = subprocess.run(command, env={**os.environ, **environment}, check=False, **quiet)  # type: ignore[call-overload]
        if ended.returncode == 0 and (run := pickle.loads(path.with_suffix(".pickle").read_bytes())) is not None:
            yield run
