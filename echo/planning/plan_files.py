"""The files of plans in the cache folder: their names, and room for them."""

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

_MOST_FILES = 512  # the oldest go first


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
        _make_room(path.parent)
        files.replace(path, purpose, value)
    except OSError as error:
        files.say_not_kept(error)


def _make_room(folder: Path) -> None:
    plans = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):  # another process may make room, too
            plans.append((path.lstat().st_mtime, path))
    for _, path in sorted(plans)[: max(0, len(plans) - _MOST_FILES + 1)]:
        with contextlib.suppress(OSError):
            path.unlink()


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
