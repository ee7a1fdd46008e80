"""``mxecho doctor`` and ``mxecho cache``: whether echo works on this machine, and the files it keeps between runs."""

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

import typer

from echo.cli.arguments import Json, print_json, say
from echo.system.terminal import counted, size_text

if TYPE_CHECKING:
    from echo.system.files import CachedFile

_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"))


def doctor(as_json: Json = False) -> None:
    """Check which parts of echo work here, and why others do not.

    Ends with 0 if echo works, even with something off, and with 1 if it cannot.

    \b
    Examples:
      mxecho doctor
      mxecho doctor --json
    """
    from echo.cli import machine  # with all that it asks

    checks = machine.examine()
    works = machine.works(checks)
    if as_json:
        print_json({"works": works, "facts": [dataclasses.asdict(check) for check in checks]})
    else:
        say(machine.render(checks))
    raise typer.Exit(0 if works else 1)


def show(as_json: Json = False) -> None:
    """List the content of the cache folder: files, bytes, ages.

    The folder is $ECHO_CACHE_DIR, or else $XDG_CACHE_HOME/echo, or ~/.cache/echo.

    \b
    Examples:
      mxecho cache show
    """
    from echo.system.files import cache_folder, cached_files

    folder = cache_folder()
    rows = rows_of(cached_files(folder), time.time())
    if as_json:
        print_json({"folder": str(folder), "kinds": rows})
        return
    count, size = (sum(row[name] for row in rows) for name in ("files", "bytes"))
    lines = [f"{folder}: {counted(count, 'file')}, {size_text(size)}"]
    for row in rows:
        ages = " to ".join(dict.fromkeys(_age(row[f"{which}_seconds"]) for which in ("newest", "oldest")))
        lines.append(f"  {row['kind']}: {counted(row['files'], 'file')}, {size_text(row['bytes'])}, {ages} old")
    say("\n".join(lines))


def clear(as_json: Json = False) -> None:
    """Remove the files that echo keeps between runs.

    The next run measures and plans again. Files that echo did not write stay.

    \b
    Examples:
      mxecho cache clear
    """
    from echo.system.files import cache_folder, cached_files, delete

    folder = cache_folder()
    files = cached_files(folder)
    count, size = delete(files), sum(file.bytes for file in files)
    if as_json:
        print_json({"folder": str(folder), "removed": count, "bytes": size})
    else:
        say(f"{folder}: removed {counted(count, 'file')}, {size_text(size)}")


def rows_of(files: "Sequence[CachedFile]", now: float) -> List[Dict[str, Any]]:
    """One row a kind: its files, their bytes, the ages of the newest and of the oldest in seconds."""
    rows = []
    for kind in dict.fromkeys(file.kind for file in files):
        ages = [max(now - file.written, 0.0) for file in files if file.kind == kind]
        size = sum(file.bytes for file in files if file.kind == kind)
        row = {"kind": kind, "files": len(ages), "bytes": size}
        rows.append({**row, "newest_seconds": min(ages), "oldest_seconds": max(ages)})
    return rows


def _age(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} seconds"
