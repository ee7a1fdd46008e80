"""Which lines and branches the tests run, of the package's Python and of its C++: one table of rooms for each.

    python -m tests.coverage                    # the quick tests
    python -m tests.coverage tests/policies     # or whatever pytest is given

The native libraries are built into ``build/coverage`` and take the place of the installed ones. Python's figures come
from coverage.py (children included), those of C++ from gcov. ``build/coverage/never.txt`` lists what was never run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Iterable, NamedTuple, Tuple

from tests import libraries

ROOT = libraries.ROOT
FOLDER = ROOT / "build" / "coverage"
OBJECTS, DATA = FOLDER / "native", FOLDER / "python"
QUICK = ("-n", "2", "--dist", "loadfile", "-m", "not slow and not gpu")
Branch = Tuple[int, int]  # of C++ a line and a number, of Python two lines
_CONFIG = f"""[run]
branch = true
parallel = true
source = echo
data_file = {DATA}/data
patch = subprocess
disable_warnings = no-data-collected, module-not-imported, module-not-measured
[json]
show_contexts = false
"""


class File(NamedTuple):
    """Lines and branches of one file, each with whether it was run."""

    name: str
    lines: dict[int, bool]
    branches: dict[Branch, bool]


def python_files() -> list[File]:
    """What coverage.py noted."""
    command = [sys.executable, "-m", "coverage"]
    config = f"--rcfile={FOLDER / 'coveragerc'}"
    subprocess.run([*command, "combine", config, "-q"], check=False, cwd=ROOT)
    result = FOLDER / "python.json"
    subprocess.run([*command, "json", config, "-q", "-o", str(result)], check=True, cwd=ROOT)
    files = []
    for name, file in json.loads(result.read_text(encoding="utf-8"))["files"].items():
        lines = {**dict.fromkeys(file["executed_lines"], True), **dict.fromkeys(file["missing_lines"], False)}
        branches = {(a, b): True for a, b in file["executed_branches"]}
        branches.update({(a, b): False for a, b in file["missing_branches"]})
        files.append(File(name, lines, branches))
    return files


def native_files() -> list[File]:
    """What gcov makes of the counts. A header is in several objects; what only an exception takes is no branch."""
    lines: dict[str, dict[int, bool]] = defaultdict(dict)
    branches: dict[str, dict[Branch, bool]] = defaultdict(dict)
    for notes in sorted(OBJECTS.rglob("*.gcda")):
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(notes)]
        text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=OBJECTS).stdout
        for file in (file for line in text.splitlines() for file in json.loads(line)["files"]):
            path = (OBJECTS / file["file"]).resolve()
            if ROOT / "echo" not in path.parents:
                continue
            name = str(path.relative_to(ROOT))
            for line in file["lines"]:
                number = line["line_number"]
                lines[name][number] = lines[name].get(number, False) or line["count"] > 0
                for at, branch in enumerate(each for each in line["branches"] if not each["throw"]):
                    ran = branches[name].get((number, at), False)
                    branches[name][number, at] = ran or branch["count"] > 0
    return [File(name, lines[name], branches[name]) for name in sorted(lines)]


def table(title: str, files: Iterable[File]) -> str:
    """A line for each room, and one for all of them."""
    rooms: dict[str, list[File]] = defaultdict(list)
    for file in files:
        rooms[str(Path(file.name).parent)].append(file)
        rooms["all"].append(file)
    rows = [f"{title:28} {'files':>5} {'lines':>14} {'branches':>14}"]
    for room in sorted(rooms, key=lambda room: (room == "all", room)):
        counts = [[ran for file in rooms[room] for ran in kind(file).values()]
                  for kind in (lambda file: file.lines, lambda file: file.branches)]  # fmt: skip
        shares = (f"{100 * sum(each) / max(len(each), 1):6.1f} % of {len(each):5}" for each in counts)
        rows.append(f"{room:28} {len(rooms[room]):5} " + " ".join(shares))
    return "\n".join(rows)


def never(files: Iterable[File]) -> Iterable[str]:
    """Lines and branches that were never run, as ``FILE: lines 3 4; branches 7->9``; of C++ a branch is its line."""
    for file in files:
        lines = sorted(line for line, ran in file.lines.items() if not ran)
        branches = sorted(branch for branch, ran in file.branches.items() if not ran and file.lines.get(branch[0]))
        shown = [f"{a}->{b}" if file.name.endswith(".py") else str(a) for a, b in branches]
        if lines or branches:
            yield f"{file.name}: lines {' '.join(map(str, lines))}; branches {' '.join(dict.fromkeys(shown))}"


def main() -> int:
    """Builds, runs pytest, and prints; pytest's status."""
    DATA.mkdir(parents=True, exist_ok=True)
    for old in (*DATA.glob("data*"), *OBJECTS.rglob("*.gcda")):
        old.unlink()
    (FOLDER / "coveragerc").write_text(_CONFIG, encoding="utf-8")
    built = libraries.build(OBJECTS.relative_to(ROOT / "build"), "--coverage")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={FOLDER / 'coveragerc'}", "-m", "pytest"]
    environment = {**os.environ, **libraries.environment(built)}
    status = subprocess.run([*command, *(sys.argv[1:] or QUICK)], env=environment, check=False, cwd=ROOT).returncode
    python, native = python_files(), native_files()
    print("", table("Python", python), "", table("C++", native), sep="\n")
    (FOLDER / "never.txt").write_text("\n".join([*never(python), *never(native), ""]), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
