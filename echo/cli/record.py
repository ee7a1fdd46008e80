"""``mxecho record -- python train.py ...``: measures a training run without a change to it, with echo and without."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import typer

from echo.cli.arguments import Annotated, Json, check_folders, print_json
from echo.errors import OptionError

RUN, OFF, ON = "run", "off", "on"
_NO_STEPS = (
    "no training step was seen: expected a program that trains by mx.mod.Module or gluon.Trainer, "
    "in a Python that has mxnet-echo installed and reads .pth files"
)

Command = Annotated[List[str], typer.Argument(metavar="COMMAND...", help="What trains, and its own arguments.")]
Compare = Annotated[
    Optional[str], typer.Option(metavar="OFF,ON", help="Run it for each: off without echo, on with it, as ECHO=1 does.")
]
Out = Annotated[str, typer.Option(metavar="FOLDER", help="Where rows (CSV) and sums (JSON) of each run are written.")]
Every = Annotated[int, typer.Option(metavar="N", min=1, help="Training steps of a row.")]
Warmup = Annotated[int, typer.Option(metavar="N", min=0, help="Training steps that are left out of sums.")]
Picture = Annotated[Optional[str], typer.Option(metavar="FILE", help="Draw it, as FILE.png or FILE.svg.")]


def record(
    ctx: typer.Context,
    command: Command,
    compare: Compare = None,
    out: Out = "recording",
    every: Every = 10,
    warmup: Warmup = 10,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Record what a training takes: time, memory, energy.

    Samples a second, milliseconds a step, memory of the process and in MXNet's storage; on GPUs their memory, power and
    energy, and the energy of CPUs where it can be read. The program stays as it is, and its exit status is this one's.

    \b
    Examples:
      mxecho record -- python train.py --epochs 1
      mxecho record --compare off,on --picture both.svg -- python -m sockeye.train ...
    """
    names = [RUN] if compare is None else compare.split(",")
    if compare is not None and (not set(names) <= {OFF, ON} or len(set(names)) < len(names)):
        raise OptionError(f"--compare: expected off, on or off,on, got {compare!r}")
    if picture:
        from echo.report.pages import ending_of

        ending_of(picture)  # before the training
        check_folders(picture)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for ending in (".csv", ".json"):
            if folder.joinpath(name + ending).exists():
                folder.joinpath(name + ending).unlink()
        folder.joinpath(f"{name}.csv").touch()  # whether it can be written is known before the training
        folder.joinpath(f"{name}.csv").unlink()
    variables = {"ECHO_RECORD_EVERY": str(every), "ECHO_RECORD_WARMUP": str(warmup)}
    train = partial(_train, command, folder, variables, to_stderr=as_json)
    ctx.obj.append(lambda: _record(names, train, folder, picture, as_json))


def _record(names: Sequence[str], train: Any, folder: Path, picture: Optional[str], as_json: bool) -> int:
    """Runs the command under each name and shows what was recorded; the exit status."""
    from echo.errors import EchoError

    try:
        status = next(filter(None, map(train, names)), 0)  # the first that fails is the last
        recordings = _recordings(names, folder)
        if not recordings:
            print(f"mxecho record: {_NO_STEPS}", file=sys.stderr)
            return status or 1
        _show(recordings, folder, picture, as_json)
        return status
    except (EchoError, OSError) as error:
        print(f"mxecho record: {error}", file=sys.stderr)
        return 1


def _train(command: Sequence[str], folder: Path, variables: Dict[str, str], name: str, to_stderr: bool) -> int:
    """Runs the command with its steps recorded; its exit status, 128 and the signal's number where one ended it."""
    on = {OFF: "0", ON: "1", RUN: os.environ.get("ECHO", "0")}[name]
    path = str((folder / f"{name}.csv").absolute())
    environment = {**os.environ, **variables, "ECHO": on, "ECHO_RECORD": path}
    with subprocess.Popen(command, env=environment, stdout=sys.stderr if to_stderr else None) as child:
        while True:
            try:
                status = child.wait()
                return status if status >= 0 else 128 - status
            except KeyboardInterrupt:  # the program was interrupted, too, and ends as it likes
                continue


def _recordings(names: Sequence[str], folder: Path) -> Dict[str, Any]:
    from echo.instrument.windows import read_rows

    paths = {name: folder / f"{name}.csv" for name in names}
    return {name: read_rows(path) for name, path in paths.items() if path.exists()}


def _predicted(names: Sequence[str], folder: Path) -> Dict[str, Optional[int]]:
    """The peak of the process that echo predicted for each recording, None where it predicted none.

    The recording without echo has no prediction of its own: the one with echo has both.
    """
    found: Dict[str, Optional[int]] = {}
    for name in names:
        path = folder / f"{ON if name == OFF else name}.json"
        value = json.loads(path.read_text(encoding="utf-8")).get("predicted") if path.exists() else None
        found[name] = sum(value["stock" if name == OFF else "echo"].values()) if value else None
    return found


def _show(recordings: Dict[str, Any], folder: Path, picture: Optional[str], as_json: bool) -> None:
    from echo.instrument.windows import summary

    predicted = _predicted(list(recordings), folder)
    sums = {name: {**summary(rows), "predicted_process": predicted[name]} for name, rows in recordings.items()}
    if picture:
        from echo.instrument.chart import save

        save(recordings, picture)
    if as_json:
        print_json(sums)
        return
    from echo.cli.tables import render_recording

    print(render_recording(sums))
    print(f"rows and sums: {folder}")
