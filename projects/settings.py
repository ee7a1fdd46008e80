"""Under which environment variables a model is trained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "projects"
PACKAGES = ROOT / ".projects"  # `make projects` installs one folder of packages a project there

STOCK, UNFUSED, COLD, WARM = "stock", "unfused", "cold", "warm"
SETTINGS: dict[str, dict[str, str]] = {
    STOCK: {"ECHO": "0"},
    UNFUSED: {"ECHO": "1", "ECHO_FUSE": "0"},
    COLD: {"ECHO": "1"},  # nothing planned or measured before
    WARM: {"ECHO": "1"},  # with the files that the cold start left
}
STOCK_AGAIN = "stock-again"
# Stock again, and stock with other rules about who shares storage: where they differ, MXNet's own result is undefined.
AGAIN: dict[str, dict[str, str]] = {
    STOCK_AGAIN: {"ECHO": "0"},
    "stock-range-1": {"ECHO": "0", "NNVM_EXEC_MATCH_RANGE": "1"},
}

# MXNet hands out four temporary spaces in turn, each as large as its largest user: with one, counters of two runs can
# be compared. One thread, so that sums keep their order.
_COMMON = {
    "MXNET_PROFILER_AUTOSTART": "1",
    "MXNET_PROFILER_MODE": "8",  # memory
    "MXNET_CPU_TEMP_COPY": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONFAULTHANDLER": "1",
    "ECHO_LOG": "DEBUG",
}


def python_path(project: str) -> str:
    """``PYTHONPATH`` of a process that sees the packages of a project, and this repository."""
    return os.pathsep.join((str(PACKAGES / project), str(ROOT)))


def environment(project: str, setting: str, cache: Path) -> Mapping[str, str]:
    """The variables of a child process: the user's, without those of echo, MXNet and Python's path."""
    ours = ("ECHO", "MXNET_", "NNVM_", "PYTHONPATH")
    found = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **found,
        **_COMMON,
        **{**SETTINGS, **AGAIN}[setting],
        "ECHO_CACHE_DIR": str(cache),
        "PYTHONPATH": python_path(project),
    }
