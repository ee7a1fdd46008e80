"""``mxecho run train.py ...``: what ``ECHO=1 python train.py ...`` does, where Python reads no .pth files; and
``mxecho verify``, with ``ECHO_VERIFY=1``.
"""

import atexit
import os
import sys
from typing import Any, List, Optional

import typer

from echo.cli.usage import WithUsage
from echo.cli.words import Annotated

_WITH_VALUES = ("--policy", "--max-overhead", "--memory-budget", "--plan")

Program = Annotated[
    Optional[List[str]], typer.Argument(metavar="PROGRAM", help="SCRIPT or -m MODULE, and its own arguments.")
]
PolicyAsVariable = Annotated[
    Optional[str], typer.Option(metavar="VALUE", help="search (default), echo, ...; as ECHO_POLICY.")
]
OverheadAsVariable = Annotated[
    Optional[str], typer.Option(metavar="VALUE", help="Fraction of the step, or none; as ECHO_MAX_OVERHEAD.")
]
BudgetAsVariable = Annotated[
    Optional[str], typer.Option(metavar="VALUE", help='Bytes, "6GB" or a fraction; as ECHO_MEMORY_BUDGET.')
]
PlanAsVariable = Annotated[
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


def split(argv: List[str]) -> "tuple[List[str], List[str]]":
    """The options, and the program with its own arguments, which may look like options."""
    end = 0
    while end < len(argv) and argv[end].startswith("-") and argv[end] != "-m":
        end += 2 if argv[end] in _WITH_VALUES else 1
    return argv[:end], argv[end:]


def run(
    ctx: typer.Context,
    program: Program = None,
    policy: PolicyAsVariable = None,
    max_overhead: OverheadAsVariable = None,
    memory_budget: BudgetAsVariable = None,
    plan: PlanAsVariable = None,
    strict: Strict = False,
) -> None:
    """Run a program with echo, as ECHO=1 does.

    Arguments, exit code and tracebacks are those of plain Python.

    \b
    Examples:
      mxecho run train.py --epochs 10
      mxecho run --max-overhead none -m package.train --epochs 10
    """
    _later(ctx, "run", program, _variables(policy, max_overhead, memory_budget, plan, strict))


def verify(
    ctx: typer.Context,
    program: Program = None,
    policy: PolicyAsVariable = None,
    max_overhead: OverheadAsVariable = None,
    memory_budget: BudgetAsVariable = None,
    plan: PlanAsVariable = None,
    strict: Strict = False,
) -> None:
    """Run a program with echo, and check its first steps.

    The first step of each plan is compared with the stock graph's, as ECHO_VERIFY=1 does, and the log says how it went.

    \b
    Examples:
      mxecho verify train.py --epochs 1
    """
    variables = _variables(policy, max_overhead, memory_budget, plan, strict)
    _later(ctx, "verify", program, {"ECHO_LOG": os.environ.get("ECHO_LOG", "INFO"), **variables, "ECHO_VERIFY": "1"})


def _say_if_nothing_was_bound() -> None:
    find = sys.modules.get("echo.runtime.find")  # every bind with echo goes through it
    if find is None or not find.PLANNER.summary.graphs:
        print("mxecho verify: nothing was verified: this process bound no graph for training", file=sys.stderr)


def _variables(
    policy: Optional[str], max_overhead: Optional[str], memory_budget: Optional[str], plan: Optional[str], strict: bool
) -> "dict[str, str]":
    values = {
        "ECHO_POLICY": policy,
        "ECHO_MAX_OVERHEAD": max_overhead,
        "ECHO_MEMORY_BUDGET": memory_budget,
        "ECHO_PLAN": plan,
        "ECHO_STRICT": "1" if strict else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _later(ctx: typer.Context, command: str, program: Optional[List[str]], variables: "dict[str, str]") -> None:
    """Has the program run when the command line is read: whatever it raises is not the command line's to catch."""
    ctx.obj.append(lambda: with_variables(command, program or [], variables))


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
    if "ECHO_VERIFY" in variables:
        atexit.register(_say_if_nothing_was_bound)
    if program:
        os.environ.update(variables, ECHO="1")  # for the processes that the program starts, too
        startup.watch(activates=True)
    return programs.run(program, command)
