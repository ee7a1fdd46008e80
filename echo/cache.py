"""Files that echo keeps between runs: JSON, read with distrust, replaced atomically.

Whatever is in the folder, damaged, half-written or foreign, is ignored and written anew; a folder that cannot be
written to costs nothing but the time to find things out again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import IO, Any, Iterator, Mapping

_MAX_BYTES = 32 << 20  # no file of ours comes near


def cache_folder() -> Path:
    """Where caches live: ``$ECHO_CACHE_DIR``, else ``$XDG_CACHE_HOME/echo``, else ``~/.cache/echo``."""
    own = os.environ.get("ECHO_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return Path(shared or os.path.expanduser("~/.cache")) / "echo"


def read(path: Path, form: str) -> dict[str, Any] | None:
    """The JSON object in a file, if it is one and says that it has this ``format``."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
        value = json.loads(data.decode("utf-8")) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("format") == form else None


def replace(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object in one step: a reader sees the old file or the new one.

    Raises:
        OSError: the folder is read-only or full.
    """
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, allow_nan=False))  # json.dump would do it item by item, in Python
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file beside ``path``, so that no other writer's merge is lost between reading and replacing."""
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
