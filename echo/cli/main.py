"""The command line, ``mxecho`` or ``python -m echo``: one module for commands that belong together.

Exit statuses of all commands: 0 on success; 2 for an invalid command line (a word, a value of an option, a name, a
shape), with one line or the usage on standard error; 1 for any other error, with one line. ``run``, ``verify``
and ``record`` end with the status of the program that they run; if that is 0, ``verify`` ends with 1 when nothing was
verified, and ``record`` when no step was seen. ``doctor`` ends with 1 if echo cannot work. Commands import their
dependencies when they run, so that ``--help`` is fast.
"""

import io
import sys
from typing import Any, Callable, List, Optional, Sequence

import typer
from typer.main import get_command

from echo.cli import maintenance, plan, profile, run
from echo.cli.arguments import Annotated, WithUsage, printable, said, say
from echo.errors import EchoError, NativeError, OptionError, ShapeError
from echo.system.process import without_garbage_collection
from echo.system.terminal import complain

_LONGEST = 1000  # characters of a line about an error
_RENAMED = {  # commands of release candidates
    "show": "plan --load FILE", "why": "plan SYMBOL SHAPES --why NAME", "compare": "profile --compare",
    "diff": "profile FILE --diff FILE", "frontier": "profile --frontier",
}  # fmt: skip
_ANY_WORDS = {"ignore_unknown_options": True, "allow_extra_args": True}


def _version(asked: bool) -> None:
    """Prints the version, and which instructions the kernels use."""
    if not asked:
        return
    from importlib.metadata import version

    try:
        from echo.kernels import level

        kernels = f"fused operators on the CPU use {level()} instructions"
    except NativeError as error:
        kernels = f"no fused operators: {error}"
    say(f"mxnet-echo {version('mxnet-echo')}, {kernels}")
    raise typer.Exit


def mxecho(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version, and the instructions of the kernels.",
        ),
    ] = False,
) -> None:
    """Train the same MXNet model in less memory.

    \b
    mxecho run train.py                                                  # as python train.py, with echo
    mxecho plan model-symbol.json data=128,50 softmax_label=128,50       # or look at the plan first
    mxecho doctor                                                        # does echo work here?

    Exit statuses: 0 on success; 2 for an invalid command line; 1 for any other error, with one line on standard error.
    `mxecho --install-completion` has your shell complete commands and options.
    """


def application() -> typer.Typer:
    """The commands with their options."""
    names = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(name="mxecho", rich_markup_mode=None, no_args_is_help=True, context_settings=names)
    app.callback()(mxecho)
    app.command(cls=run.BeforeAProgram)(run.run)
    app.command(cls=run.BeforeAProgram)(run.verify)
    for command in (plan.plan, profile.profile, plan.schedule):
        app.command(cls=WithUsage)(command)
    app.command(cls=WithUsage, context_settings={**names, "allow_interspersed_args": False})(run.record)
    app.command(cls=WithUsage)(maintenance.doctor)
    cache = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    cache.command()(maintenance.show)
    cache.command()(maintenance.clear)
    app.add_typer(cache, name="cache", help="Show or clear the plans and times that echo keeps between runs.")
    for name in _RENAMED:
        app.command(name, hidden=True, add_help_option=False, context_settings=_ANY_WORDS)(_renamed)
    return app


def _renamed(ctx: typer.Context) -> None:
    """Names the command that an old one has become."""
    raise OptionError(f"{ctx.info_name}: this command is now mxecho {_RENAMED[str(ctx.info_name)]}")


def main(argv: Optional[Sequence[str]] = None) -> Any:
    """Runs a command, and returns its exit status for `sys.exit`."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may have characters that the terminal lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    programs: List[Callable[[], int]] = []  # of the user: run after all that the command line catches
    try:
        from echo.plans.variables import warn_of_misspelt

        warn_of_misspelt(lambda line: complain(f"mxecho: {line}"))
        with without_garbage_collection():  # which takes a tenth of a second for the objects of MXNet's import alone
            get_command(application()).main(None if argv is None else list(argv), prog_name="mxecho", obj=programs)
    except SystemExit as end:
        status = end.code or 0
    except (EchoError, OSError) as error:
        from echo.system.files import shortened

        text = printable(shortened(said(error), _LONGEST)).replace("\n", "\\n")
        complain(f"mxecho: {text}")
        return 2 if isinstance(error, (OptionError, ShapeError)) else 1
    return programs[0]() if programs else status


if __name__ == "__main__":
    sys.exit(main())
