"""Files: those that users name, read with distrust, and those that echo keeps between runs in its cache folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping

from echo.system.threads import ONCE

# Files as data: opened without waiting for anybody, regular files alone, JSON with one meaning.

_FILE_TYPES = {
    stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a character beyond 16 bits, as JSON escapes it
_MOST_DIGITS = 19  # of a whole number below 2**63
_MOST_BYTES = 1 << 30  # of a file that the user names; a symbol of 230,000 nodes takes 0.1 GB


class UntrustedError(OSError):
    """A file is no regular file, is too large, or can be written by another user."""


def open_regular(path: str | os.PathLike[str], flags: int, links: bool = True) -> int:
    """Opens a regular file without waiting, as opening a FIFO would; with ``links`` also through a symbolic link.

    Raises:
        UntrustedError: it is something else.
        OSError: it cannot be opened.
    """
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", *(() if links else ("O_NOFOLLOW",))):
        flags |= getattr(os, name, 0)  # not all of them are everywhere
    try:
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a FIFO to write to that has no reader
            raise UntrustedError(error.errno, "expected a regular file", str(path)) from None
        if error.errno in (errno.ELOOP, getattr(errno, "EMLINK", None)) and not links:
            raise UntrustedError(error.errno, "expected a regular file, got a symbolic link", str(path)) from None
        raise
    file_type = stat.S_IFMT(os.fstat(handle).st_mode)
    if file_type != stat.S_IFREG:
        os.close(handle)
        got = _FILE_TYPES.get(file_type, "something else")
        raise UntrustedError(errno.EINVAL, f"expected a regular file, got {got}", str(path))
    return handle


def read_own(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a file that only this user or root can have written.

    The file's owner and mode decide, not the folder's: a user who may rename, remove or link files there cannot
    forge a content, which a digest binds to its purpose. So the folder may be in a shared ``/tmp``, or be mounted by a
    container with any mode.

    Raises:
        UntrustedError: another user can have written it; or it is no regular file, or has more than ``most`` bytes.
        OSError: it cannot be read.
    """
    handle = open_regular(path, os.O_RDONLY, links=False)
    with open(handle, "rb") as file:
        state = os.fstat(handle)
        if hasattr(os, "geteuid") and state.st_uid not in (os.geteuid(), 0):
            raise UntrustedError(errno.EPERM, f"it belongs to another user (number {state.st_uid})", str(path))
        if os.name == "posix" and state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(state.st_mode)
            raise UntrustedError(errno.EPERM, f"others can write to it (mode {mode:o})", str(path))
        return _limited(file.read(most + 1), most, path)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a file that the user names.

    Raises:
        UntrustedError: it is no regular file, or larger than any of its kind.
        OSError: it cannot be read.
    """
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return _limited(file.read(_MOST_BYTES + 1), _MOST_BYTES, path)


def read_json(path: str | os.PathLike[str], strict: bool = True) -> Any:
    """The JSON value in a file that the user names. Without ``strict``, texts may hold control characters.

    Raises:
        ValueError: it is not JSON, or has no one meaning: keys that come twice, numbers that are not finite, texts
            with halves of surrogate pairs, which cannot be encoded again.
        UntrustedError, OSError: as `read_bytes`.
    """
    data = read_bytes(path)
    try:
        value = json.loads(
            data.decode("utf-8"), strict=strict, object_pairs_hook=_object, parse_int=_whole, parse_float=_finite,
            parse_constant=_constant,
        )  # fmt: skip
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(data) is not None:  # a whole pair, which is fine, or half of one
        _check_unicode(value)
    return value


def write_in_one_step(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a file that the user names: a reader sees the old content or the new one, also if the disk is full.

    A symbolic link stays, and the file that it leads to is replaced, with its mode. Devices and FIFOs are written to.

    Raises:
        OSError: the folder is read-only or full; the error names ``path``.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if _is_replaced(path):
            _replace_by(Path(os.path.realpath(path)), data)
        else:
            Path(path).write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error


def _is_replaced(path: str | os.PathLike[str]) -> bool:
    """Whether another file can replace the path: not a device, and not /dev/stdout even if it leads to a file."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/")) or not os.access(
        os.path.dirname(os.path.realpath(path)), os.W_OK
    ):
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True


def _replace_by(target: Path, content: bytes) -> None:
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        with contextlib.suppress(OSError):
            unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def digest_of(purpose: str, content: bytes) -> str:
    """A text that is equal for equal contents with equal purposes."""
    digest = hashlib.sha256()
    for part in (purpose.encode("utf-8", "surrogatepass"), content):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def shortened(text: str, most: int = 100) -> str:
    """A text from a file or a user, cut to a length that fits into a message."""
    return text if len(text) <= most else f"{text[:most]}..."


def _limited(data: bytes, most: int, path: str | os.PathLike[str]) -> bytes:
    if len(data) > most:
        raise UntrustedError(errno.EFBIG, f"expected at most {most:,} bytes", str(path))
    return data


def _check_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"expected texts of whole characters, got half of one, {half!r}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shortened(repr(twice))} stands in an object twice")
    return value


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"expected numbers of at most {_MOST_DIGITS} digits, got {shortened(text, 30)}")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"expected finite numbers, got {shortened(text, 30)}")
    return number


def _constant(text: str) -> float:
    raise ValueError(f"expected finite numbers, got {text}")


# Files that echo keeps between runs: JSON, read with distrust, replaced atomically.
#
# A file begins with a digest of its purpose and of all that follows. A file that is damaged, half-written, edited,
# put instead of another or written by another user is ignored, with one line in the log, and written again. Where
# the folder cannot be written to, every run finds the same things out again.

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
    """Logs, once a process, that nothing can be kept: a warning if the user named the folder."""
    folder = cache_folder()
    if ONCE.first(f"{folder} not kept"):
        level = logging.WARNING if os.environ.get("ECHO_CACHE_DIR") else logging.INFO
        reason = "expected a folder, got a file" if os.path.isfile(folder) else error.strerror or error
        logger.log(level, "echo: nothing is kept in %s (%s): each process measures and plans again", folder, reason)


def read(path: Path, purpose: str) -> dict[str, Any] | None:
    """The JSON object in a file, if echo wrote it there, for this user and this ``purpose``; otherwise None."""
    try:
        data = read_own(path, _MAX_BYTES)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
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
    """Logs, once a process, that a file is not used."""
    if ONCE.first(str(path)):
        logger.warning("echo: %s is ignored, and its content is made again: %s", path, reason)


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
    """Holds the lock file alongside ``path``, so that no other writer's merge is lost between reading and replacing.

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


# Lists and clears the files in echo's cache folder: only files with names of echo's, and no others.

PLANS, TIMES, KERNELS = "plans", "times of operators", "compiled CUDA kernels"
OTHERS = "locks, and half-written files"
_NAMES: Mapping[str, re.Pattern[str]] = {
    PLANS: re.compile(r"plans/[0-9a-f]{40}\.json"),
    TIMES: re.compile(r"costs-[0-9a-f]{16}\.json"),
    KERNELS: re.compile(r"ptx/[a-z_]+-[0-9a-f]{16}\.ptx"),
    OTHERS: re.compile(
        r"costs-[0-9a-f]{16}\.lock|(plans/[0-9a-f]{40}|costs-[0-9a-f]{16})\.json\w*\.tmp|"
        r"ptx/[a-z_]+-[0-9a-f]{16}\.ptx\.\w{6}"
    ),
}


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache: its kind, its bytes, and the time of its writing, in seconds since 1970."""

    path: Path
    kind: str
    bytes: int
    written: float


def cached_files(folder: Path) -> tuple[CachedFile, ...]:
    """The files that echo wrote into a cache folder, the oldest first; none where there is no such folder.

    A link instead of an inner folder is not followed: its target is not the cache's.

    Raises:
        OSError: the folder cannot be read.
    """
    files = []
    for inner in (folder, folder / "plans", folder / "ptx"):
        with contextlib.suppress(FileNotFoundError):
            for path in [] if inner != folder and inner.is_symlink() else inner.iterdir():
                files += _cached_files(path, path.relative_to(folder).as_posix())
    return tuple(sorted(files, key=lambda each: (each.written, each.path)))


def _cached_files(path: Path, name: str) -> list[CachedFile]:
    kind = next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(name)), None)
    with contextlib.suppress(FileNotFoundError):  # another process makes room, too
        state = path.lstat()
        if kind is not None and stat.S_ISREG(state.st_mode):
            return [CachedFile(path, kind, state.st_size, state.st_mtime)]
    return []


def delete(files: Iterable[CachedFile]) -> int:
    """Removes files; the number of those that were still there.

    Raises:
        OSError: one of them cannot be removed; those before it are gone.
    """
    count = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            file.path.unlink()
            count += 1
    return count
