"""The resident memory of this process, as Linux counts it."""

from __future__ import annotations

import contextlib
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(line: str) -> int:
    """Bytes of this process by a line of Linux's status file: VmRSS, or VmHWM, the most so far; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError):
        for text in _STATUS.read_text(encoding="ascii").splitlines():
            if text.startswith(line + ":"):
                return int(text.split()[1]) << 10
    return 0


def reset_peak() -> None:
    """Has Linux forget the most bytes of this process so far (VmHWM); a container may not allow it."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5", encoding="ascii")
