"""``mxecho run``, ``verify`` and ``record``: the commands that run the user's program.

``mxecho run train.py`` does what ``ECHO=1 python train.py`` does, also where Python reads no .pth files.
"""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import typer

from echo.cli.arguments import (
    FLAGS_WITH_VALUES,
    Annotated,
    Dump,
    Json,
    OldTrace,
    WithUsage,
    check_folders,
    flag_of,
    given,
    make_folder,
    print_json,
    said,
    say,
    takes_options,
)
from echo.errors import EchoError, OptionError
from echo.system.terminal import MB, complain, text_of

_WITH_VALUES = (*FLAGS_WITH_VALUES, "--dump", "--trace")

Program = Annotated[
    Optional[List[str]], typer.Argument(metavar="PROGRAM", help="SCRIPT or -m MODULE, and its own arguments.")
]


class BeforeAProgram(WithUsage):
    """A command whose options end where the user's program begins, whose arguments are its own."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        options, program = split(args)
        return super().parse_args(ctx, [*options, "--", *program] if program else options)

    def collect_usage_pieces(self, ctx: Any) -> List[str]:
        return ["[OPTIONS]", "{SCRIPT | -m MODULE}", "[ARGUMENT]..."]


def _with_dump(folder: str) -> str:
    """Returns ``ECHO_DEBUG`` with a folder for the results of stages."""
    from echo.plans.variables import escaped

    return ",".join(filter(None, [os.environ.get("ECHO_DEBUG"), f"dump={escaped(folder)}"]))


def split(argv: List[str]) -> "tuple[List[str], List[str]]":
    """The options, and the program with its own arguments, which may look like options."""
    end = 0
    while end < len(argv) and argv[end].startswith("-") and argv[end] != "-m":
        end += 2 if argv[end] in _WITH_VALUES else 1
    return argv[:end], argv[end:]


def _command(name: str, text: str, more: "dict[str, str]") -> "Callable[..., None]":
    """Makes the command that runs a program with echo, and with ``more`` variables, whose help is ``text``."""

    def command(
        ctx: typer.Context,
        program: Program = None,
        dump: Dump = None,
        trace: OldTrace = None,
        **flags: Any,
    ) -> None:
        from echo.plans.variables import VARIABLE_OF

        make_folder("--dump", dump)
        values = {name: _as_variable(value) for name, value in given(flags).items()}
        if values.pop("no_fuse", None):
            values["fuse"] = "0"
        variables = {**more, **{VARIABLE_OF[name]: text for name, text in values.items()}}
        if dump:
            variables["ECHO_DEBUG"] = _with_dump(dump)
        # later: the command line must not catch the program's own exceptions
        ctx.obj.append(lambda: with_variables(name, program or [], variables))

    command.__name__, command.__doc__ = name, text
    return takes_options(*(["verify"] if name == "verify" else []))(command)


def _as_variable(value: Any) -> str:
    return ",".join(value) if isinstance(value, (list, tuple)) else "1" if value is True else value


run = _command(
    "run",
    """Run a program with echo, as ECHO=1 does.

    Arguments, exit code and tracebacks are those of plain Python.

    \b
    Examples:
      mxecho run train.py --epochs 10
      mxecho run --max-overhead 0.25 -m package.train --epochs 10
    """,
    {},
)
verify = _command(
    "verify",
    """Run a program with echo, and check its first steps.

    The first step of each plan is compared with the stock graph's, as ECHO_VERIFY=1 does, and the result is logged.
    Ends with the program's exit status; if that is 0 and no graph was bound for training, with 1: a Gluon block has
    none before it is hybridized.

    \b
    Examples:
      mxecho verify train.py --epochs 1
    """,
    {"ECHO_VERIFY": "1"},
)


def _nothing(command: str, program_ended_well: bool) -> int:
    """Prints at the end of a program if nothing was planned, or verified, and why; returns the exit status."""
    find = sys.modules.get("echo.runtime.bind_plan")  # every bind with echo goes through it
    gluon = sys.modules.get("echo.runtime.gluon")
    if find is not None and (planned := find.PLANNER.summary).graphs:
        if command == "verify" and planned.unchanged == planned.graphs:
            complain("mxecho verify: echo changes no graph of this program, so there was nothing to compare")
        return 0
    why = gluon.UNPLANNED.why() if gluon else ""
    if command == "verify" or why:
        done = "verified" if command == "verify" else "planned"
        reason = why or "this process bound no graph for training"
        complain(f"mxecho {command}: nothing was {done}: {reason}")
    return int(command == "verify" and program_ended_well)


def with_variables(command: str, program: List[str], variables: "dict[str, str]") -> int:
    """Runs a program with echo on and these ``ECHO_*`` variables; the exit status, as `echo.cli.program.run`."""
    from echo import startup
    from echo.cli import program as programs
    from echo.plans.options import renamed
    from echo.plans.variables import VARIABLE_OF, options_from

    flags = {variable: flag_of(option) for option, variable in VARIABLE_OF.items() if variable in variables}
    try:
        options_from({**os.environ, **variables})
    except OptionError as error:
        return programs.refuse(renamed(str(error), flags), 2, command)
    if not program:
        return programs.run(program, command)
    if command == "verify":
        os.environ.setdefault("ECHO_LOG", "INFO")
    os.environ.update(variables, ECHO="1")  # for the processes that the program starts, too
    startup.watch(activates=True)
    try:
        status = programs.run(program, command)
    except SystemExit as end:
        if not end.code:
            return _nothing(command, True)
        _nothing(command, False)
        raise
    return status or _nothing(command, True)


# ``mxecho record``: a training run, measured without a change to it, with echo and without.

RUN, OFF, ON = "run", "off", "on"
_NO_STEPS = (
    "no training step was seen: expected a program that trains by mx.mod.Module or gluon.Trainer, "
    "in a Python that has mxnet-echo installed and reads .pth files"
)

Command = Annotated[List[str], typer.Argument(metavar="COMMAND...", help="The training program and its arguments.")]
Compare = Annotated[
    Optional[str], typer.Option(metavar="OFF,ON", help="Run it for each: off without echo, on with it, as ECHO=1 does.")
]
Out = Annotated[str, typer.Option(metavar="FOLDER", help="Folder for the rows (CSV) and sums (JSON) of each run.")]
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
    """Record the time, memory and energy of a training.

    Samples a second, milliseconds a step, memory of the process and in MXNet's storage; on GPUs their memory, power and
    energy, and the energy of CPUs if it can be read. The program stays as it is, and its exit status is passed on.

    \b
    Examples:
      mxecho record -- python train.py --epochs 1
      mxecho record --compare off,on --picture both.svg -- python -m sockeye.train ...
    """
    names = [RUN] if compare is None else compare.split(",")
    if compare is not None and (not set(names) <= {OFF, ON} or len(set(names)) < len(names)):
        raise OptionError(f"--compare: expected off, on or off,on, got {compare!r}")
    _check_before_training(command[0], picture)
    make_folder("--out", out)
    folder = Path(out)
    for name in names:
        for ending in (".csv", ".json"):
            if folder.joinpath(name + ending).exists():
                folder.joinpath(name + ending).unlink()
        folder.joinpath(f"{name}.csv").touch()  # whether it can be written is known before the training
        folder.joinpath(f"{name}.csv").unlink()
    variables = {"ECHO_RECORD_EVERY": str(every), "ECHO_RECORD_WARMUP": str(warmup)}
    train = partial(_train, command, folder, variables, to_stderr=as_json)
    ctx.obj.append(lambda: _record(names, train, folder, picture, as_json))


def _check_before_training(program: str, picture: Optional[str]) -> None:
    """Raises `OptionError` for what is no program, or a picture that cannot be written."""
    if shutil.which(program) is None:
        raise OptionError(f"expected a command, as python train.py, got {program!r}, which is no program")
    if picture:
        from echo.report.pages import ending_of

        ending_of(picture)
        check_folders(picture)


def _record(names: Sequence[str], train: Any, folder: Path, picture: Optional[str], as_json: bool) -> int:
    """Runs the command under each name and shows the recordings; returns the exit status."""
    try:
        status = next(filter(None, map(train, names)), 0)  # the first that fails is the last
        recordings = _recordings(names, folder)
        if not recordings:
            complain(f"mxecho record: {_NO_STEPS}")
            return status or 1
        _show(recordings, folder, picture, as_json)
        return status
    except (EchoError, OSError) as error:
        complain(f"mxecho record: {said(error)}")
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


def _predicted_time(sums: Mapping[str, Mapping[str, Any]], folder: Path) -> Dict[str, float]:
    """The predicted time of a step with echo, as a multiple of one without, and the part that recomputation takes.

    They are known if a recording without echo was made, too.
    """
    path = folder / f"{ON}.json"
    if not {OFF, ON} <= set(sums) or not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    names = ("predicted_time", "predicted_recomputation")
    return {name: value[name] for name in names if value.get(name) is not None}


def _slower(sums: Mapping[str, Mapping[str, Any]]) -> Optional[str]:
    """Returns a line on a step that took longer than predicted: the bounds on time are bounds on predictions."""
    from echo.plans.text import faster_advice

    original, planned = (sums.get(name, {}).get("ms_a_step") for name in (OFF, ON))
    predicted = sums.get(ON, {}).get("predicted_time")
    if predicted is None or not original or planned is None or planned / original - predicted <= _LATE:
        return None
    advice = faster_advice(sums[ON].get("predicted_recomputation", 0.0)) if planned > original else ""
    return (
        f"a step took {planned / original:.2f} times the one without echo, {predicted:.2f} was predicted"
        f"{': ' * bool(advice)}{advice} (docs/limits.md)"
    )


def _show(recordings: Dict[str, Any], folder: Path, picture: Optional[str], as_json: bool) -> None:
    from echo.instrument.windows import summary

    predicted = _predicted(list(recordings), folder)
    sums = {name: {**summary(rows), "predicted_process": predicted[name]} for name, rows in recordings.items()}
    if found := _predicted_time(sums, folder):
        sums[OFF]["predicted_time"] = 1.0
        sums[ON].update(found)
    if picture:
        from echo.instrument.windows import save_chart

        save_chart(recordings, picture)
    if as_json:
        print_json(sums)
        return
    say("\n".join(filter(None, [render_recording(sums), _slower(sums), f"rows and sums: {folder}"])))


_FIGURES = {  # name: words, divisor, decimals
    "ms_a_step": ("ms a step (median)", 1, 1),
    "predicted_time": ("time of a step, predicted, % of that without echo", 0.01, 0),
    "samples_a_second": ("samples a second", 1, 1),
    "process": ("peak of the process, MB", MB, 0),
    "predicted_process": ("peak of the process, predicted, MB", MB, 0),
    "storage": ("peak of MXNet's storage, MB", MB, 1),
    "device": ("memory of the GPUs, MB", MB, 0),
    "gpu_joules_a_sample": ("GPU energy, J a sample", 1, 3),
    "gpu_watts": ("GPU power, W", 1, 1),
    "cpu_joules_a_sample": ("CPU energy, J a sample", 1, 3),
    "cpu_watts": ("CPU power, W", 1, 1),
    "steps": ("steps measured", 1, 0),
    "steps_left_out": ("steps left out (warm-up)", 1, 0),
}
_COUNTS = ("steps", "steps_left_out")
_LATE = 0.05  # of a step without echo: predictions are seldom more than that off


def render_recording(sums: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each figure that some recording has; of two recordings, also how much the second changes the first."""
    from echo.instrument.windows import WORDS
    from echo.plans.text import table_of

    table = table_of("", *(WORDS.get(name, name) for name in sums), *(["change"] if len(sums) == 2 else []))
    for figure, (words, unit, decimals) in _FIGURES.items():
        values = [figures.get(figure) for figures in sums.values()]
        if any(value is not None for value in values):
            cells = ["-" if value is None else f"{value / unit:,.{decimals}f}" for value in values]
            table.add_row(words, *cells, *([] if len(sums) != 2 else [_change(figure, *values)]))
    return text_of([table], 100)


def _change(figure: str, first: Optional[float], second: Optional[float]) -> str:
    if figure in _COUNTS or first is None or second is None or not first:
        return ""
    return f"{100 * (second / first - 1):+.0f} %"
