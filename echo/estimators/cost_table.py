"""Measured seconds of operators on one device, kept on disk between runs.

The file is data: JSON, checked field by field, replaced atomically, merged when several processes write. A damaged or
foreign file is ignored and written anew; a folder that cannot be written to leaves the table in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import IO, Any, Iterator, Mapping

_FORMAT = "echo-cost-table-1"
# A table grows by about 150 bytes a distinct operator; the seven models of the benchmarks make 0.2 MB together.
_MAX_BYTES = 32 << 20
_MAX_SECONDS = 3600.0


def cache_folder() -> Path:
    """Where tables live: ``$ECHO_CACHE_DIR``, else ``$XDG_CACHE_HOME/echo``, else ``~/.cache/echo``."""
    own = os.environ.get("ECHO_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return Path(shared or os.path.expanduser("~/.cache")) / "echo"


class CostTable:
    """Seconds by signature for one device. A signature that could not be measured is kept as None.

    ``device`` is any text that names hardware and settings (`echo.runtime.measure.device_key`); each has its own file.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.device = device
        self.path = (folder or cache_folder()) / f"costs-{hashlib.sha256(device.encode()).hexdigest()[:16]}.json"
        self._seconds: dict[str, float | None] = _read(self.path, device)
        self._added: dict[str, float | None] = {}

    def __contains__(self, signature: object) -> bool:
        return signature in self._seconds

    def __len__(self) -> int:
        return len(self._seconds)

    def __repr__(self) -> str:
        return f"CostTable({self.device!r}, {len(self)} signatures, {str(self.path)!r})"

    def get(self, signature: str) -> float | None:
        """The measured seconds, or None where it was not measured or cannot be."""
        return self._seconds.get(signature)

    def add(self, signature: str, seconds: float | None) -> None:
        """Keeps a measurement (None: it cannot be measured) until `save`.

        Raises:
            ValueError: the seconds are not a positive finite number.
        """
        if not _is_seconds(seconds):
            raise ValueError(f"expected a positive finite number of seconds or None, got {seconds!r}")
        self._seconds[signature] = self._added[signature] = seconds

    def save(self) -> bool:
        """Writes what was added, merged with what other processes wrote. False where nothing could be written."""
        if not self._added:
            return True
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
                merged = {**_read(self.path, self.device), **self._added}
                _replace(self.path, {"format": _FORMAT, "device": self.device, "seconds": merged})
        except OSError:
            return False  # read-only or full: the table works on in memory
        self._seconds = {**merged, **self._seconds}
        self._added = {}
        return True


def _is_seconds(value: object) -> bool:
    if value is None:
        return True
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value < _MAX_SECONDS  # type: ignore[arg-type, operator]


def _read(path: Path, device: str) -> dict[str, float | None]:
    """The seconds in the file; nothing where it is missing, damaged or another device's."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
        value = json.loads(text) if len(text) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    if not (isinstance(value, dict) and value.get("format") == _FORMAT and value.get("device") == device):
        return {}
    seconds = value.get("seconds")
    if not (isinstance(seconds, dict) and all(map(_is_seconds, seconds.values()))):
        return {}
    return seconds


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, allow_nan=False)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the table's lock file, so that no other writer's merge is lost between reading and replacing."""
    with open(path.with_suffix(".lock"), "a", encoding="utf-8") as file:
        _flock(file, "LOCK_EX")
        try:
            yield
        finally:
            _flock(file, "LOCK_UN")  # closing the file would not do where a process was forked meanwhile


def _flock(file: IO[str], operation: str) -> None:
    try:
        import fcntl

        fcntl.flock(file, getattr(fcntl, operation))
    except (ImportError, OSError):
        return  # a file system without locks: the replacement is still atomic, a merge may be lost
