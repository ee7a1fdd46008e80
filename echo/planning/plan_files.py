"""The files of plans in the cache folder: their names, and a bound on their number and bytes.

The least recently used files go first; reading a plan counts as a use. Listing a full folder takes as long as planning
a graph of ten operators, so it is listed for one name of sixteen, and the bound may be passed by some files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any, Mapping, Sequence

from echo import native
from echo.system import files

_MOST_FILES = 512
_MOST_BYTES = 256 << 20


def key_of(parts: Sequence[str]) -> str:
    """The name of a plan that depends on these texts, and on this echo."""
    digest = hashlib.sha256()
    for part in [*parts, _source()]:
        text = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(text) + text)
    return digest.hexdigest()[:40]


def path_of(key: str) -> Path:
    """Where the plan of this name is kept."""
    return files.cache_folder() / "plans" / f"{key}.json"


def keep(key: str, purpose: str, value: Mapping[str, Any]) -> None:
    """Writes the file of this name, for `echo.system.files.read`. A folder that cannot be written to is no error."""
    path = path_of(key)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if key.endswith("0"):  # a digit of a digest
            _make_room(path.parent)
        files.replace(path, purpose, value)
    except OSError as error:
        files.say_not_kept(error)


def read(key: str, purpose: str) -> dict[str, Any] | None:
    """Returns what `keep` wrote under this name, and counts it as used; None if there is nothing valid."""
    path = path_of(key)
    value = files.read(path, purpose)
    if value is not None:
        with contextlib.suppress(OSError):  # a folder that is read-only keeps its order
            os.utime(path, follow_symlinks=False)
    return value


def _make_room(folder: Path) -> None:
    plans = []
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.name.endswith(".json"):
                with contextlib.suppress(OSError):  # another process may make room, too
                    state = entry.stat(follow_symlinks=False)
                    plans.append((state.st_mtime, state.st_size, entry.path))
    number, size = len(plans), sum(of_file for _, of_file, _ in plans)
    for _, of_file, path in sorted(plans):
        if number < _MOST_FILES and size <= _MOST_BYTES:
            break
        number, size = number - 1, size - of_file
        with contextlib.suppress(OSError):
            os.unlink(path)


@functools.lru_cache(maxsize=None)
def _source() -> str:
    """A text that changes with the code of echo, since a plan holds for the code that made it.

    An editable install has the native libraries in folders of their own, which their packages know.
    """
    states = set()
    kernels = importlib.util.find_spec("echo.kernels")  # which is not imported: that takes numpy
    folders = (kernels and kernels.submodule_search_locations) or ()
    for root in (os.path.dirname(os.path.dirname(__file__)), *native.__path__, *folders):
        for folder, _, names in os.walk(root):
            for name in names:
                if name.endswith((".py", ".so")):
                    path = os.path.join(folder, name)
                    state = os.stat(path)
                    states.add(f"{path} {state.st_size} {state.st_mtime_ns}")
    return ";".join(sorted(states))
