"""Results as JSON files with what is needed to read them later: date, commit, machine, versions."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def save(name: str, rows: list[dict[str, Any]], packages: tuple[str, ...] = ()) -> Path:
    """Writes ``benchmarks/results/NAME.json`` and returns its path; ``packages`` are more whose versions matter.

    If files differ from the commit, the results are not those of a commit: they go to ``out/NAME.json``, unless the
    variable ``DIRTY=1`` asks for the usual place.
    """
    path = RESULTS / f"{name}.json"
    if commit().endswith("-dirty") and os.environ.get("DIRTY") != "1":
        path = RESULTS.parents[1] / "out" / path.name
        print(f"note: files differ from the commit, so the results go to {path} (DIRTY=1 replaces those in {RESULTS})",
              file=sys.stderr)  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    value = {"benchmark": name, **_circumstances(packages), "rows": rows}
    written = path.with_suffix(".new")  # a run that is killed leaves the old file or the new one
    written.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return written.replace(path)


def known_rows(name: str) -> list[dict[str, Any]]:
    """The rows measured before, none where there are no results: a run of some models keeps the others' rows."""
    rows: list[dict[str, Any]] = load(name)["rows"] if (RESULTS / f"{name}.json").exists() else []
    return rows


def load(name: str) -> dict[str, Any]:
    """Reads what `save` wrote. Ends the program where the file is damaged."""
    path = RESULTS / f"{name}.json"
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"error: {path} is damaged: {error}; git checkout brings it back")
    return value


def committed(name: str) -> dict[str, Any]:
    """The results as git has them, whatever a run has written since; where it has none, those of the file."""
    path = f"HEAD:./{RESULTS.name}/{name}.json"
    done = subprocess.run(["git", "show", path], capture_output=True, text=True, cwd=RESULTS.parent, check=False)
    value: dict[str, Any] = load(name) if done.returncode else json.loads(done.stdout)
    return value


def parser(document: str | None, *names: str) -> argparse.ArgumentParser:
    """A parser whose help is a script's docstring, with a positional argument ``names`` of what to measure if given."""
    made = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    if names:
        made.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    return made


def asked(names: Collection[str], known: Collection[str]) -> list[str]:
    """The names that the command line has, of ``known`` ones; all of them where it has none. Ends the program else."""
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"error: expected names out of {', '.join(known)}, got {unknown[0]!r}")
    return list(names or known)


def named(document: str | None, known: Collection[str]) -> list[str]:
    """As `asked`, of a script that takes names alone."""
    return asked(parser(document, *known).parse_args().names, known)


def apart(module: str, function: str, *arguments: str | None) -> Any:
    """The result of ``function`` of ``benchmarks.MODULE``, as JSON carries it, from a process of its own.

    Raises:
        RuntimeError: it failed; with what it wrote to standard error.
    """
    code = f"import json; from benchmarks import {module} as it; print(json.dumps(it.{function}(*{arguments!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{function}{arguments} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _circumstances(packages: tuple[str, ...]) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": {"processor": processor(), "cores": len(os.sched_getaffinity(0)), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            **_versions("mxnet", "numpy", *packages),
        },
    }


def _versions(*packages: str) -> dict[str, str]:
    """The versions of those packages that are there: benchmarks of torch run without MXNet."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@functools.lru_cache(maxsize=None)
def commit() -> str:
    """The commit of the code, with "-dirty" where files differ from it, but for results and what is made of them."""
    command = ["git", "describe", "--always"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=RESULTS.parent, check=False)
    command = ["git", "status", "--porcelain", "-uno", "--", ":/", f":!{RESULTS.name}", ":!/docs", ":!/README.md"]
    changed = subprocess.run(command, capture_output=True, text=True, cwd=RESULTS.parent, check=False).stdout
    return done.stdout.strip() + "-dirty" * bool(changed) if done.stdout else "unknown"


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
