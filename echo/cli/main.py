"""The command line, ``mxecho`` or ``python -m echo``: runs a program with echo; plans a saved symbol and explains it;
schedules a training graph of any framework; says what of echo works on a machine.

::

    mxecho run --max-overhead none train.py --epochs 10
    mxecho verify train.py --epochs 1
    mxecho plan model-symbol.json data=128,50 softmax_label=128,50
    mxecho plan model-symbol.json data=32,3,224,224 --max-overhead none --save plan.json
    mxecho show plan.json
    mxecho why plan.json encoder_l0_tanh
    mxecho profile model-symbol.json data=128,50 softmax_label=128,50 --by '^(encoder|decoder)'
    mxecho schedule graph.json --budget 5GB
    mxecho doctor
    mxecho --version
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Sequence

from echo.cli import run
from echo.errors import BudgetError, EchoError, NativeError, OptionError
from echo.plans.options import TRACE_VARIABLE
from echo.plans.plan import Plan
from echo.system.deadline import Deadline
from echo.system.reading import shortened

_SCHEDULING = 60.0  # seconds that a schedule may take
_MOST_ELEMENTS = 2**31  # of an array of MXNet's wheels
_POLICY_HELP = "search (default), echo, sublinear, mincut, exact, all or none"


class _Version(argparse.Action):
    """Prints the version, and which instructions the kernels use."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        try:
            from echo.kernels import level  # which imports numpy

            kernels = f"fused operators on the CPU use {level()} instructions"
        except NativeError as error:
            kernels = f"no fused operators: {error}"
        print(f"mxnet-echo {version('mxnet-echo')}, {kernels}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mxecho", description="Train the same MXNet model in less memory.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version, and what the kernels use")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="run a program with echo, as ECHO=1 does")  # parsed by echo.cli.run
    commands.add_parser("verify", help="the same, and compare the first step of each plan with the stock graph's")
    commands.add_parser("doctor", help="say what of echo works on this machine, what is off, and why")
    plan = commands.add_parser("plan", help="plan a saved symbol for some shapes and explain the plan")
    plan.add_argument("symbol", help="a symbol saved by MXNet, as model-symbol.json")
    plan.add_argument("shapes", nargs="+", metavar="NAME=SHAPE", help="shapes of inputs, as data=128,50")
    plan.add_argument("--policy", default="search", help=_POLICY_HELP)
    plan.add_argument("--max-overhead", default="auto", help="fraction of the step (default 0.10), or none")
    plan.add_argument("--memory-budget", help='bytes, "6GB", or a fraction of what is needed without echo')
    plan.add_argument("--keep", action="append", default=[], metavar="PATTERN", help="nodes or operators to stash")
    plan.add_argument("--recompute", action="append", default=[], metavar="PATTERN", help="nodes to recompute")
    plan.add_argument("--no-fuse", action="store_false", dest="fuse", help="no fused kernels: results keep every bit")
    plan.add_argument("--fuse", choices=("memory",), default=True, help="fused kernels where they are slower, too")
    plan.add_argument("--save", metavar="FILE", help="write the plan as JSON")
    plan.add_argument("--trace", metavar="FOLDER", help="write down what each stage gave, as ECHO_TRACE does")
    plan.add_argument("--why", action="append", default=[], dest="names", metavar="NAME", help="explain a feature map")
    _add_profile(commands.add_parser("profile", help="say where the memory of a training step goes"))
    show = commands.add_parser("show", help="print a plan saved before")
    show.add_argument("plan", help="a plan saved by `mxecho plan --save` or Plan.save()")
    why = commands.add_parser("why", help="say why a map is stashed or recomputed by a plan saved before")
    why.add_argument("plan", help="as for show")
    why.add_argument("names", nargs="+", metavar="NAME", help="a node, or NODE:OUTPUT")
    schedule = commands.add_parser("schedule", help="schedule a training graph within a memory budget")
    schedule.add_argument("graph", help="a training step as JSON: nodes with costs, bytes and dependencies")
    schedule.add_argument("--budget", required=True, help='bytes, "5GB", or a fraction of what is needed without echo')
    schedule.add_argument("--policy", default="search", help=_POLICY_HELP)
    return parser


def _add_profile(profile: argparse.ArgumentParser) -> None:
    profile.add_argument("symbol", help="a symbol saved by MXNet, or a profile saved by --save, without shapes")
    profile.add_argument("shapes", nargs="*", metavar="NAME=SHAPE", help="shapes of inputs, as data=128,50")
    profile.add_argument("--compare", default="echo", help="what to set beside the symbol's own graph: echo, mirror")
    profile.add_argument("--max-overhead", default="auto", help="as for plan")
    profile.add_argument("--memory-budget", help="as for plan")
    profile.add_argument("--no-fuse", action="store_false", dest="fuse", help="as for plan")
    profile.add_argument("--run", action="store_true", help="also take two steps of each graph, and measure them")
    profile.add_argument("--budgets", type=int, default=0, metavar="N", help="also plan for N memory budgets")
    profile.add_argument("--by", metavar="REGEX", help="group arrays by what this finds in their names, not by layers")
    profile.add_argument("--save", metavar="FILE", help="write the profile as JSON")
    profile.add_argument("--html", metavar="FILE", help="write a page with charts, which needs no network")
    profile.add_argument("--picture", metavar="FILE", help="write a picture, FILE.png or FILE.svg")
    profile.add_argument("--title", default="", help="the name of the model, for pages and pictures")
    profile.add_argument("--json", action="store_true", help="print the profile as JSON")


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, separator, sizes = text.partition("=")
    try:
        if not separator:
            raise ValueError
        shape = tuple(int(size) for size in sizes.strip("()").split(",") if size.strip())
        if math.prod(shape) >= _MOST_ELEMENTS or not all(0 <= size < _MOST_ELEMENTS for size in shape):
            raise ValueError
        return name, shape
    except ValueError as error:
        raise OptionError(
            f"expected NAME=SHAPE such as data=128,50, of less than 2**31 elements, got {shortened(repr(text))}"
        ) from error


def _number(option: str, text: str | None, words: Sequence[str] = ()) -> Any:
    """A number, or one of some words left as it is; None for "none"."""
    if text is None or text.lower() == "none":
        return None
    if text in words:
        return text
    try:
        return float(text)
    except ValueError:
        if option == "--memory-budget":
            return text  # a size with a unit, checked by Options
        raise OptionError(f"{option}: expected a number, got {text!r}") from None


def _plan(arguments: argparse.Namespace) -> Plan:
    import echo
    from echo.frontend.files import load_symbol

    if arguments.trace:
        os.environ[TRACE_VARIABLE] = arguments.trace
    return echo.plan(
        load_symbol(Path(arguments.symbol)),
        policy=arguments.policy,
        max_overhead=_number("--max-overhead", arguments.max_overhead, ["auto"]),
        memory_budget=_number("--memory-budget", arguments.memory_budget),
        keep=arguments.keep,
        recompute=arguments.recompute,
        fuse=arguments.fuse,
        **dict(map(_shape, arguments.shapes)),
    )


def _profile(arguments: argparse.Namespace) -> str:
    import echo
    from echo.frontend.files import load_symbol
    from echo.report import page, picture
    from echo.report.text import render
    from echo.report.usage import layer_by, layer_of

    layer = layer_by(arguments.by) if arguments.by else layer_of
    if arguments.shapes:
        profile = echo.profile(
            load_symbol(Path(arguments.symbol)),
            compare=[name for name in arguments.compare.split(",") if name],
            run=arguments.run,
            budgets=arguments.budgets,
            max_overhead=_number("--max-overhead", arguments.max_overhead, ["auto"]),
            memory_budget=_number("--memory-budget", arguments.memory_budget),
            fuse=arguments.fuse,
            **dict(map(_shape, arguments.shapes)),
        )
    else:
        _check_no_planning(arguments)
        profile = echo.Profile.load(arguments.symbol)
    if arguments.save:
        profile.save(arguments.save)
    title = arguments.title or Path(arguments.symbol).stem
    if arguments.html:
        page.save(profile, arguments.html, title, layer)
    if arguments.picture:
        picture.save(profile, arguments.picture, title, layer)
    return json.dumps(profile.to_json()) if arguments.json else render(profile, layer)


def _check_no_planning(arguments: argparse.Namespace) -> None:
    """Refuses, for a profile that was saved, the options of those that are made anew; they would change nothing."""
    given = [option for option, name, default in _OF_NEW_PROFILES if getattr(arguments, name) != default]
    if given:
        raise OptionError(f"{given[0]} is for a symbol: expected shapes of its inputs, as data=128,50")


def _schedule(arguments: argparse.Namespace) -> str:
    from echo.cli.schedule import held_at_peak, render_schedule
    from echo.ir.data_graph import load_dag
    from echo.plans.options import budget_bytes
    from echo.policies import policy_named
    from echo.policies.data_problem import smallest, solve_graph

    policy, deadline = policy_named(arguments.policy), Deadline.after(_SCHEDULING)
    graph = load_dag(Path(arguments.graph))
    amount = _number("--memory-budget", arguments.budget)
    try:
        budget = budget_bytes("none" if amount is None else amount, graph.training.planned_bytes)
    except OptionError:
        raise OptionError(
            f"--budget: expected bytes, a size such as 5GB or a fraction such as 0.5, got {arguments.budget!r}"
        ) from None
    solved = solve_graph(policy, *graph, max_bytes=budget, deadline=deadline)
    if solved.value.bytes > budget:
        least = min(solved, smallest(policy, *graph, deadline=deadline), key=lambda candidate: candidate.value.bytes)
        held = held_at_peak(graph.training, least)
        raise BudgetError(budget, least.value.bytes, held, f" by policy {policy.name!r}")
    return render_schedule(graph, policy.name, budget, solved)


_OF_NEW_PROFILES = (  # an option, its name, and what it is where it is not given
    ("--compare", "compare", "echo"), ("--max-overhead", "max_overhead", "auto"), ("--run", "run", False),
    ("--memory-budget", "memory_budget", None), ("--no-fuse", "fuse", True), ("--budgets", "budgets", 0),
)  # fmt: skip
_TEXTS = {"profile": _profile, "schedule": _schedule}  # commands whose result is a text


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; 0 on success, 1 with one line on standard error otherwise."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["run"], ["verify"]):
        return run.run(words[1:], words[0])
    if words[:1] == ["doctor"]:
        from echo.cli import doctor  # with all that it asks

        return doctor.run(words[1:])
    arguments = _parser().parse_args(words)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may have characters that the terminal has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if arguments.command in _TEXTS:
            print(_TEXTS[arguments.command](arguments))
            return 0
        plan = _plan(arguments) if arguments.command == "plan" else Plan.load(arguments.plan)
        answers = [str(plan.why(name)) for name in getattr(arguments, "names", ())]
        if getattr(arguments, "save", None):
            plan.save(arguments.save)
    except (EchoError, OSError) as error:
        print(f"mxecho: {shortened(str(error), 1000)}", file=sys.stderr)
        return 1
    print("\n".join(answers if arguments.command == "why" else [str(plan), *answers]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
