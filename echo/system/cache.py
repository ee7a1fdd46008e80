"""Lists and clears the files in echo's cache folder: only files with names of echo's, and no others."""

from __future__ import annotations

import contextlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Mapping

PLANS, TIMES, OTHERS = "plans", "times of operators", "locks, and what was half-written"
_NAMES: Mapping[str, re.Pattern[str]] = {
    PLANS: re.compile(r"plans/[0-9a-f]{40}\.json"),
    TIMES: re.compile(r"costs-[0-9a-f]{16}\.json"),
    OTHERS: re.compile(r"costs-[0-9a-f]{16}\.lock|(plans/[0-9a-f]{40}|costs-[0-9a-f]{16})\.json\w*\.tmp"),
}


@dataclass(frozen=True)
class Kept:
    """A file of the cache: what it is for, its bytes, and when it was written, in seconds since 1970."""

    path: Path
    kind: str
    bytes: int
    written: float


def kept(folder: Path) -> tuple[Kept, ...]:
    """The files that echo wrote into a cache folder, the oldest first; none where there is no such folder.

    A link in the place of the inner folder is not followed: what it leads to is not the cache's.

    Raises:
        OSError: the folder cannot be read.
    """
    files = []
    for inner in (folder, folder / "plans"):
        with contextlib.suppress(FileNotFoundError):
            for path in [] if inner != folder and inner.is_symlink() else inner.iterdir():
                files += _kept(path, path.relative_to(folder).as_posix())
    return tuple(sorted(files, key=lambda each: (each.written, each.path)))


def _kept(path: Path, name: str) -> list[Kept]:
    kind = next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(name)), None)
    with contextlib.suppress(FileNotFoundError):  # another process makes room, too
        state = path.lstat()
        if kind is not None and stat.S_ISREG(state.st_mode):
            return [Kept(path, kind, state.st_size, state.st_mtime)]
    return []


def delete(files: Iterable[Kept]) -> int:
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
