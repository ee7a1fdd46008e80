"""Files that echo keeps between runs: JSON, read with distrust, replaced atomically.

A file begins with a digest of its purpose and of all that follows. A file that is damaged, half-written, edited, put in
the place of another or written by another user is ignored, with one line in the log, and written anew. Where the folder
cannot be written to, every run finds the same things out again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, Mapping

from echo.system.once import ONCE
from echo.system.reading import digest_of, open_regular, read_own

logger = logging.getLogger("echo")
_MAX_BYTES = 32 << 20  # no file of ours comes near
_PREFIX = b'{"digest": "%s", '
_LONGEST_WAIT = 5.0  # seconds for a lock; merging and replacing a table takes milliseconds


def cache_folder() -> Path:
    """Returns the folder of caches: ``$ECHO_CACHE_DIR``, else ``$XDG_CACHE_HOME/echo``, else ``~/.cache/echo``.

    By the XDG specification, a relative ``$XDG_CACHE_HOME`` counts as none.
    """
    echo_folder = os.environ.get("ECHO_CACHE_DIR")
    if echo_folder:
        return Path(os.path.expanduser(echo_folder))
    xdg_folder = os.environ.get("XDG_CACHE_HOME", "")
    return Path(xdg_folder if os.path.isabs(xdg_folder) else os.path.expanduser("~/.cache")) / "echo"


def say_not_kept(error: OSError) -> None:
    """Says, once a process, that nothing can be kept: a warning where the user named the folder."""
    folder = cache_folder()
    if ONCE.first(f"{folder} not kept"):
        level = logging.WARNING if os.environ.get("ECHO_CACHE_DIR") else logging.INFO
        reason = error.strerror or error
        logger.log(level, "echo: nothing is kept in %s (%s): each process measures and plans anew", folder, reason)


def read(path: Path, purpose: str) -> dict[str, Any] | None:
    """The JSON object in a file, if echo wrote it there, for this user and this ``purpose``; otherwise None."""
    try:
        data = read_own(path, _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        ignore(path, error.strerror or str(error))
        return None
    start = len(_PREFIX) - 2 + 64  # hexadecimal digits of SHA-256
    body = data[start:]
    if data[:start] != _PREFIX % digest_of(purpose, body).encode():
        ignore(path, "it is damaged, or was not written for this")
        return None
    try:
        value = json.loads(b"{" + body)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else None


def ignore(path: Path, reason: str) -> None:
    """Says, once a process, that a file is not used."""
    if ONCE.first(str(path)):
        logger.warning("echo: %s is ignored, what is in it is found out anew: %s", path, reason)


def replace(path: Path, purpose: str, value: Mapping[str, Any]) -> None:
    """Writes a JSON object in one step: a reader sees the old file or the new one.

    One that is too large to be read again is not written.

    Raises:
        OSError: the folder is read-only or full.
    """
    body = json.dumps(value, allow_nan=False)[1:].encode()  # json.dump would do it item by item, in Python
    if len(_PREFIX) + 64 + len(body) > _MAX_BYTES:
        return
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(_PREFIX % digest_of(purpose, body).encode() + body)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file beside ``path``, so that no other writer's merge is lost between reading and replacing.

    A process that holds it for seconds is not waited for: the replacement is atomic all the same.

    Raises:
        OSError: there can be no such file.
    """
    with open(open_regular(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, links=False), "rb+") as file:
        held = _lock(file.fileno())
        try:
            yield
        finally:
            if held:
                _unlock(file.fileno())  # closing the file would not do where a process was forked meanwhile


def _lock(handle: int) -> bool:
    """Locks the file; False where that takes too long, or where the file system has no locks."""
    try:
        import fcntl
    except ImportError:
        return False
    end = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        except OSError:
            return False


def _unlock(handle: int) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
