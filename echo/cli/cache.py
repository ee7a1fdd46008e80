"""``mxecho cache show`` and ``mxecho cache clear``: measured times and plans that echo keeps between runs."""

import time
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from echo.cli.arguments import Json, print_json
from echo.system.terminal import size_text

if TYPE_CHECKING:
    from echo.system.files import Kept

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def show(as_json: Json = False) -> None:
    """Say what the cache folder holds: files, bytes, ages.

    The folder is $ECHO_CACHE_DIR, or else $XDG_CACHE_HOME/echo, or ~/.cache/echo.

    \b
    Examples:
      mxecho cache show
    """
    from echo.system.files import cache_folder, kept

    folder = cache_folder()
    rows = rows_of(kept(folder), time.time())
    if as_json:
        print_json({"folder": str(folder), "kinds": rows})
        return
    print(f"{folder}: {sum(row['files'] for row in rows)} files, {_size(sum(row['bytes'] for row in rows))}")
    for row in rows:
        ages = f"{_age(row['newest_seconds'])} to {_age(row['oldest_seconds'])} old"
        print(f"  {row['kind']}: {row['files']} files, {_size(row['bytes'])}, {ages}")


def clear(as_json: Json = False) -> None:
    """Remove what echo keeps between runs.

    The next run measures and plans again. Files that echo did not write stay.

    \b
    Examples:
      mxecho cache clear
    """
    from echo.system.files import cache_folder, delete, kept

    folder = cache_folder()
    kept_files = kept(folder)
    count, size = delete(kept_files), sum(file.bytes for file in kept_files)
    if as_json:
        print_json({"folder": str(folder), "removed": count, "bytes": size})
    else:
        print(f"{folder}: removed {count} files, {_size(size)}")


def rows_of(files: "Sequence[Kept]", now: float) -> List[Dict[str, Any]]:
    """One row a kind: how many files, their bytes, the ages of the newest and of the oldest in seconds."""
    rows = []
    for kind in dict.fromkeys(file.kind for file in files):
        ages = [max(now - file.written, 0.0) for file in files if file.kind == kind]
        size = sum(file.bytes for file in files if file.kind == kind)
        row = {"kind": kind, "files": len(ages), "bytes": size}
        rows.append({**row, "newest_seconds": min(ages), "oldest_seconds": max(ages)})
    return rows


def _size(size: int) -> str:
    return size_text(size)


def _age(seconds: float) -> str:
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} seconds"
