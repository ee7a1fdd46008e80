"""Do models of real projects train the same under ECHO=1, and in how much less memory?

    python -m projects [--fast] [--steps N] [PROJECT or PROJECT/MODEL ...]

Each model trains some steps without echo, with ``ECHO_FUSE=0`` (every bit has to be the same, random streams
included), and with ``ECHO=1``, first with nothing planned before and then with what that left (gradients of the first
step within a tolerance). Writes benchmarks/results/projects.json; ends with 1 where a model differs.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from typing import Any

from benchmarks.record import known_rows, save
from projects.report import row_of, words
from projects.run import Run, train
from projects.settings import AGAIN, COLD, OUT, PACKAGES, SETTINGS, STOCK, UNFUSED, WARM

PROJECTS = ("sockeye_1", "sockeye_2", "gluon_nlp", "gluon_cv", "gluon_ts")
FAST = ("sockeye_1/rnn_lstm", "gluon_nlp/awd_lstm", "gluon_nlp/bert")
STEPS = 2


def models() -> dict[str, tuple[str, str]]:
    """PROJECT/MODEL of everything that can be trained, in the order of the table."""
    found = {}
    for project in PROJECTS:
        for model in importlib.import_module(f"projects.{project}").MODELS:
            found[f"{project}/{model}"] = (project, model)
    return found


def measure(project: str, model: str, steps: int) -> dict[str, Any]:
    """One row: all settings in turn, and stock again where the bits differ."""
    runs: dict[str, Run] = {}
    for setting in (*SETTINGS, *AGAIN):
        if setting in AGAIN and not _needs_again(runs):
            continue
        _progress(f"{project}/{model}: {setting}")
        runs[setting] = train(project, model, steps, setting, _cache(project, model, setting))
        if setting == STOCK and runs[STOCK].failure:
            break
    _progress("")
    return row_of(project, model, steps, runs)


def _needs_again(runs: dict[str, Run]) -> bool:
    return bool(row_of("", "", 0, runs)["faults"])


def _cache(project: str, model: str, setting: str) -> Any:
    """A fresh folder for all but the warm start, which has that of the cold one."""
    folder = OUT / project / model / ("cache-" + (UNFUSED if setting == UNFUSED else COLD))
    if setting != WARM:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def chosen(names: list[str], every: dict[str, tuple[str, str]]) -> list[str]:
    """The models of those names, of which some name a whole project.

    Raises:
        SystemExit: there is no such model.
    """
    found: list[str] = []
    for name in names:
        matching = [one for one in every if one == name or one.startswith(f"{name}/")]
        if not matching:
            sys.exit(f"error: expected a project out of {', '.join(PROJECTS)}, or PROJECT/MODEL, got {name!r}")
        found += matching
    return list(dict.fromkeys(found))


def main() -> int:
    """Trains what the command line names, all by default; 1 where a model differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help=f"only {', '.join(FAST)}; results are not written")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training (default {STEPS})")
    parser.add_argument("names", nargs="*", metavar="PROJECT[/MODEL]")
    arguments = parser.parse_args()
    every = models()
    names = chosen(arguments.names or list(FAST if arguments.fast else every), every)
    missing = sorted({project for project, _ in map(every.__getitem__, names)} - {path.name for path in _installed()})
    if missing:
        parser.error(f"{', '.join(missing)} not installed: `make projects` installs what is needed and runs this")
    rows = {f"{row['project']}/{row['model']}": row for row in known_rows("projects")}
    for name in names:
        rows[name] = measure(*every[name], arguments.steps)
        print(words(rows[name]), flush=True)
        if not arguments.fast:
            save("projects", [rows[one] for one in every if one in rows and "failure" not in rows[one][STOCK]])
    return _summary({name: rows[name] for name in names})


def _summary(rows: dict[str, dict[str, Any]]) -> int:
    """Prints how many train the same; a model that MXNet alone cannot train is no fault of echo's, and named."""
    untrained = [name for name, row in rows.items() if "failure" in row[STOCK]]
    failed = [name for name, row in rows.items() if row["faults"] and name not in untrained]
    trained = len(rows) - len(untrained)
    print(f"{trained - len(failed)} of {trained} models train as without echo", *failed, sep="\n  ")
    if untrained:
        print(f"{len(untrained)} fail without echo", *untrained, sep="\n  ")
    return int(bool(failed))


def _installed() -> list[Any]:
    return [path for path in PACKAGES.glob("*") if path.is_dir()]


if __name__ == "__main__":
    sys.exit(main())
