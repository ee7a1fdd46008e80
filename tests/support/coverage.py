"""Which lines and branches the tests run, of the package's Python and of its C++: one table of rooms for each.

    python -m tests.support.coverage                    # the quick tests
    python -m tests.support.coverage tests/policies     # or whatever pytest is given
    python -m tests.support.coverage --floors           # planning and the native libraries alone, held against floors

The native libraries are built into ``build/coverage`` and take the place of the installed ones. Python's figures come
from coverage.py (children included), those of C++ from gcov. ``build/coverage/never.txt`` lists what was never run;
with ``--floors`` it is printed, too. The floors are some points below what the tests reach: a room falls below one
where code comes without tests, not where a run takes another turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Iterable, Mapping, NamedTuple, Sequence, Tuple

from tests.support import libraries

ROOT = libraries.ROOT
FOLDER = ROOT / "build" / "coverage"
OBJECTS, DATA = FOLDER / "native", FOLDER / "python"
QUICK = ("-n", "2", "--dist", "loadfile", "-m", "not slow and not gpu")
# The tests of ``--floors``, of two minutes, and the least shares of lines and of branches, in percent, of rooms.
SLICE = (
    *("tests/estimators", "tests/native", "tests/planning", "tests/plans", "tests/policies"),
    "tests/passes/test_select_deepened.py",  # plans that run heavy operators twice, which a policy's search finds
    "tests/system/test_process_deadline.py",  # plans that were stopped, which are the planner's
    *(f"--ignore=tests/policies/test_{name}.py" for name in ("certificate", "search", "warm_start")),
)
FLOORS = {
    "Python": {
        "echo/estimators": (96, 94),
        "echo/native": (90, 70),
        "echo/planning": (95, 90),
        "echo/plans": (91, 85),
        "echo/policies": (95, 88),
        "echo/policies/solvers": (95, 90),
    },
    "C++": {
        "echo/native": (94, 85),
        "echo/native/hook": (77, 62),
        "echo/native/planner": (96, 92),
        "echo/native/storage": (96, 94),
    },
}
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
    """The lines and branches that coverage.py noted."""
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
    """gcov's report of the counts. A header is in several objects; a path that only an exception takes is no branch."""
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


def by_room(files: Iterable[File]) -> dict[str, list[File]]:
    """The files of each room, in the order of their names."""
    rooms: dict[str, list[File]] = defaultdict(list)
    for file in files:
        rooms[str(Path(file.name).parent)].append(file)
    return dict(sorted(rooms.items()))


def shares(files: Iterable[File]) -> list[tuple[float, int]]:
    """How much of the lines and of the branches was run, in percent, and how many there are."""
    pairs = [(file.lines.values(), file.branches.values()) for file in files]
    counts = [[ran for pair in pairs for ran in pair[kind]] for kind in range(2)]
    return [(100 * sum(each) / max(len(each), 1), len(each)) for each in counts]


def table(title: str, rooms: Mapping[str, Sequence[File]]) -> str:
    """A line for each room, and one for all of them."""
    rows = [f"{title:28} {'files':>5} {'lines':>14} {'branches':>14}"]
    everything = [file for files in rooms.values() for file in files]
    for room, inside in {**rooms, "all": everything}.items():
        texts = (f"{share:6.1f} % of {count:5}" for share, count in shares(inside))
        rows.append(f"{room:28} {len(inside):5} " + " ".join(texts))
    return "\n".join(rows)


def below(rooms: Mapping[str, Sequence[File]], floors: Mapping[str, tuple[float, float]]) -> Iterable[str]:
    """Rooms with a share below its floor, each in one line."""
    for room, floor in floors.items():
        for kind, (share, _), least in zip(("lines", "branches"), shares(rooms.get(room, ())), floor):
            if share < least:
                yield f"{room}: {share:.1f} % of {kind} were run, expected {least} %"


def never(files: Iterable[File]) -> Iterable[str]:
    """Lines and branches that were never run, as ``FILE: lines 3 4; branches 7->9``; of C++ a branch is its line."""
    for file in files:
        lines = sorted(line for line, ran in file.lines.items() if not ran)
        branches = sorted(branch for branch, ran in file.branches.items() if not ran and file.lines.get(branch[0]))
        shown = [f"{a}->{b}" if file.name.endswith(".py") else str(a) for a, b in branches]
        if lines or branches:
            yield f"{file.name}: lines {' '.join(map(str, lines))}; branches {' '.join(dict.fromkeys(shown))}"


def main() -> int:
    """Builds, runs pytest, and prints; pytest's status, or 1 where a room is below its floor."""
    held = sys.argv[1:] == ["--floors"]
    chosen = [*QUICK, *SLICE, "-q"] if held else sys.argv[1:] or QUICK
    DATA.mkdir(parents=True, exist_ok=True)
    for old in (*DATA.glob("data*"), *OBJECTS.rglob("*.gcda")):
        old.unlink()
    (FOLDER / "coveragerc").write_text(_CONFIG, encoding="utf-8")
    targets = libraries.NATIVE if held else libraries.ALL
    built = libraries.build(OBJECTS.relative_to(ROOT / "build"), "--coverage", targets=targets)
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={FOLDER / 'coveragerc'}", "-m", "pytest"]
    environment = {**os.environ, **libraries.environment(built)}
    status = subprocess.run([*command, *chosen], env=environment, check=False, cwd=ROOT).returncode
    found = {"Python": by_room(python_files()), "C++": by_room(native_files())}
    if held:
        found = {title: {room: found[title].get(room, []) for room in floors} for title, floors in FLOORS.items()}
    lines = [line for rooms in found.values() for files in rooms.values() for line in never(files)]
    (FOLDER / "never.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    print("", *(table(title, rooms) + "\n" for title, rooms in found.items()), sep="\n")
    if not held:
        return status
    faults = [f"error: {fault}" for title, floors in FLOORS.items() for fault in below(found[title], floors)]
    print("Never run:", *lines, *faults, sep="\n")
    return status or int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
