"""``mxecho run train.py ...``: what ``ECHO=1 python train.py ...`` does, where Python reads no .pth files; and
``mxecho verify``, with ``ECHO_VERIFY=1``.
"""

import os
import sys
from typing import Any, Callable, List, Optional

import typer

from echo.cli.arguments import Annotated, FuseWhere, Keep, NoFuse, Recompute, Trace, WithUsage, fused

_WITH_VALUES = ("--policy", "--max-overhead", "--memory-budget", "--optimizer-states", "--keep", "--recompute",
                "--fuse", "--max-planning", "--trace", "--plan")  # fmt: skip

Program = Annotated[
    Optional[List[str]], typer.Argument(metavar="PROGRAM", help="SCRIPT or -m MODULE, and its own arguments.")
]
Policy = Annotated[Optional[str], typer.Option(metavar="NAME", help="search (default), echo, ...; as ECHO_POLICY.")]
Overhead = Annotated[
    Optional[str], typer.Option(metavar="VALUE", help="Fraction of the step, or none; as ECHO_MAX_OVERHEAD.")
]
Budget = Annotated[
    Optional[str], typer.Option(metavar="VALUE", help='Bytes, "6GB", "50%" or 0.5; as ECHO_MEMORY_BUDGET.')
]
States = Annotated[
    Optional[str], typer.Option(metavar="N", help="Copies of the weights, as for plan; as ECHO_OPTIMIZER_STATES.")
]
Seconds = Annotated[
    Optional[str], typer.Option(metavar="SECONDS", help="For planning one graph, or none; as ECHO_MAX_PLANNING.")
]
Plans = Annotated[
    Optional[str], typer.Option(metavar="VALUE", help="A plan saved before, or several with : between; as ECHO_PLAN.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Raise where echo would warn; as ECHO_STRICT.")]


class BeforeAProgram(WithUsage):
    """A command whose options end where the user's program begins: what follows is the program's own."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        options, program = split(args)
        return super().parse_args(ctx, [*options, "--", *program] if program else options)

    def collect_usage_pieces(self, ctx: Any) -> List[str]:
        return ["[OPTIONS]", "{SCRIPT | -m MODULE}", "[ARGUMENT]..."]


def _with_dump(folder: Optional[str]) -> Optional[str]:
    """Returns ``ECHO_DEBUG`` with a folder for what each stage gives; None without one."""
    return ",".join(filter(None, [os.environ.get("ECHO_DEBUG"), f"dump={folder}"])) if folder else None


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
        policy: Policy = None,
        max_overhead: Overhead = None,
        memory_budget: Budget = None,
        optimizer_states: States = None,
        keep: Keep = None,
        recompute: Recompute = None,
        no_fuse: NoFuse = False,
        fuse: FuseWhere = None,
        max_planning: Seconds = None,
        trace: Trace = None,
        plan: Plans = None,
        strict: Strict = False,
    ) -> None:
        fused(fuse, no_fuse)  # refuses both
        kernels = "0" if no_fuse else fuse.value if fuse else ""
        values = {
            "ECHO_POLICY": policy, "ECHO_MAX_OVERHEAD": max_overhead, "ECHO_MEMORY_BUDGET": memory_budget,
            "ECHO_OPTIMIZER_STATES": optimizer_states, "ECHO_KEEP": ",".join(keep or ()),
            "ECHO_RECOMPUTE": ",".join(recompute or ()), "ECHO_FUSE": kernels,
            "ECHO_MAX_PLANNING": max_planning, "ECHO_DEBUG": _with_dump(trace), "ECHO_PLAN": plan,
            "ECHO_STRICT": "1" * strict,
        }  # fmt: skip
        given = {variable: value for variable, value in values.items() if value}
        # later, when the command line is read: whatever the program raises is not the command line's to catch
        ctx.obj.append(lambda: with_variables(name, program or [], {**more, **given}))

    command.__name__, command.__doc__ = name, text
    return command


run = _command(
    "run",
    """Run a program with echo, as ECHO=1 does.

    Arguments, exit code and tracebacks are those of plain Python.

    \b
    Examples:
      mxecho run train.py --epochs 10
      mxecho run --max-overhead none -m package.train --epochs 10
    """,
    {},
)
verify = _command(
    "verify",
    """Run a program with echo, and check its first steps.

    The first step of each plan is compared with the stock graph's, as ECHO_VERIFY=1 does, and the log says how it went.
    Ends as the program does; where that is with 0, with 1 if nothing was verified.

    \b
    Examples:
      mxecho verify train.py --epochs 1
    """,
    {"ECHO_VERIFY": "1"},
)


def _nothing(command: str, program_ended_well: bool) -> int:
    """Says at the end of a program if nothing was planned, or verified, and why; the exit status that this gives."""
    find = sys.modules.get("echo.runtime.bind_plan")  # every bind with echo goes through it
    gluon = sys.modules.get("echo.runtime.gluon")
    if find is not None and find.PLANNER.summary.graphs:
        return 0
    why = gluon.UNPLANNED.why() if gluon else ""
    if command == "verify" or why:
        done = "verified" if command == "verify" else "planned"
        reason = why or "this process bound no graph for training"
        print(f"mxecho {command}: nothing was {done}: {reason}", file=sys.stderr)
    return int(command == "verify" and program_ended_well)


def with_variables(command: str, program: List[str], variables: "dict[str, str]") -> int:
    """Runs a program with echo on and these ``ECHO_*`` variables; the exit status, as `echo.cli.program.run`."""
    from echo import startup
    from echo.cli import program as programs
    from echo.errors import OptionError
    from echo.plans.variables import options_from

    try:
        options_from({**os.environ, **variables})
    except OptionError as error:
        return programs.refuse(str(error), 2, command)
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
