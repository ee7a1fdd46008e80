"""Files as data: opened without waiting for anybody, regular files alone, JSON with one meaning."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from typing import Any

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
        if error.errno == errno.ENXIO:  # a socket, or a FIFO to write to that nobody reads
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
