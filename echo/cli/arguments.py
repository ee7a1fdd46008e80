"""Arguments and options that several commands share: their help, how their texts are read, and errors of usage."""

import json
import os
import sys
import unicodedata
from collections import Counter
from enum import Enum
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import typer
from typer.core import TyperCommand

from echo.errors import OptionError, did_you_mean

# Modules with commands are imported for each ``--help``, so nothing here or there imports numpy, rich or MXNet before
# a command runs. Annotations are evaluated at run time, so they use only syntax of Python 3.8.

if sys.version_info >= (3, 9):
    from typing import Annotated as Annotated
else:
    from typing_extensions import Annotated as Annotated  # which typer brings for Python 3.8

_SHOWN = 80  # characters of an invalid text


class FuseChoice(str, Enum):
    """The values of ``--fuse``."""

    memory = "memory"


PerhapsShapes = Annotated[
    Optional[List[str]], typer.Argument(metavar="[NAME=SHAPE...]", help="Shapes of inputs, as data=128,50.")
]
PolicyName = Annotated[
    str, typer.Option(metavar="NAME", help="search, echo, sublinear, mincut, ilp, all or none.", show_default=True)
]
MaxOverhead = Annotated[
    str, typer.Option(metavar="VALUE", help="Bound on recomputation, as a fraction of the step, or none; auto is 0.10.")
]
MaxTime = Annotated[
    str, typer.Option(metavar="VALUE", help="Bound on a step, as a multiple of the original one such as 1.0, or none.")
]
Heavy = Annotated[str, typer.Option(metavar="WHEN", help="auto, or never: no product and no convolution runs twice.")]
MemoryBudget = Annotated[
    Optional[str],
    typer.Option(metavar="VALUE", help='Bytes, "6GB", or a part of the memory without echo: "50%", 0.5.'),
]
OptimizerStates = Annotated[
    int, typer.Option(metavar="N", help="Copies of the weights that the optimizer keeps: 1 for momentum, 2 for Adam.")
]
MaxPlanning = Annotated[
    str, typer.Option(metavar="SECONDS", help="Seconds that planning one graph may take, or none for any.")
]
NoFuse = Annotated[bool, typer.Option("--no-fuse", help="No fused kernels: results keep every bit.")]
Keep = Annotated[
    Optional[List[str]], typer.Option(metavar="PATTERN", help="Nodes or operators to stash; may be repeated.")
]
Recompute = Annotated[Optional[List[str]], typer.Option(metavar="PATTERN", help="Nodes to recompute; may be repeated.")]
FuseWhere = Annotated[Optional[FuseChoice], typer.Option(help="Fuse for memory, also where kernels are slower.")]
Dump = Annotated[
    Optional[str],
    typer.Option(metavar="FOLDER", help="Write the result of each stage, as ECHO_DEBUG=dump=FOLDER does."),
]


def _refuse_trace(value: Optional[str]) -> None:
    if value is not None:
        raise OptionError("--trace: this option is now --dump FOLDER")


OldTrace = Annotated[Optional[str], typer.Option("--trace", hidden=True, callback=_refuse_trace)]
Budgets = Annotated[int, typer.Option(metavar="N", help="Also plan for N memory budgets, 2 to 100.")]
Save = Annotated[Optional[str], typer.Option(metavar="FILE", help="Write the result as a JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def shape_of(text: str) -> Tuple[str, Tuple[int, ...]]:
    """The name and the shape in NAME=SHAPE.

    Raises:
        OptionError: the text has another form.
    """
    name, separator, sizes = text.rpartition("=")
    try:
        if not (name and separator):
            raise ValueError
        shape = tuple(int(size) for size in sizes.strip("()").split(",") if size.strip())
        if not all(size >= 0 for size in shape):
            raise ValueError
        return name, shape
    except ValueError as error:
        shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
        raise OptionError(f"expected NAME=SHAPE such as data=128,50, got {shown}") from error


def shapes_of(symbol: Any, texts: Sequence[str]) -> Dict[str, Any]:
    """The shapes by name of arrays of a symbol.

    Raises:
        OptionError: as `shape_of`; or a name comes twice, or no array has it.
    """
    from echo.system.files import shortened

    shapes = [shape_of(text) for text in texts]
    counts = Counter(name for name, _ in shapes)
    arrays = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    for name, count in counts.items():
        if count > 1:
            raise OptionError(f"{name}: expected one shape of it, got {count}")
        if name not in arrays:
            known = f"expected some of {shortened(', '.join(arrays))}" if arrays else "it has no arrays at all"
            hint = did_you_mean(name, arrays) or known
            raise OptionError(f"{name}: the symbol has no array of this name; {hint}")
    return dict(shapes)


def number_of(option: str, text: Optional[str], words: Sequence[str] = ()) -> Any:
    """A number, or one of some words left as it is; None for "none".

    Raises:
        OptionError: it is none of these; the message names the option.
    """
    if text is None or text.lower() == "none":
        return None
    if text in words:
        return text
    try:
        return float(text)
    except ValueError:
        if option == "--memory-budget":
            return text  # a size with a unit, checked by Options
        raise OptionError(f"{option}: expected {', '.join(['a number', *words])} or none, got {text!r}") from None


def bounds_of(max_overhead: str, max_time: str, memory_budget: Optional[str], max_planning: str) -> Dict[str, Any]:
    """The options ``max_overhead``, ``max_time``, ``memory_budget`` and ``max_planning`` of `echo.plan`.

    Raises:
        OptionError: as `number_of`.
    """
    return {
        "max_overhead": number_of("--max-overhead", max_overhead, ["auto"]),
        "max_time": number_of("--max-time", max_time),
        "memory_budget": number_of("--memory-budget", memory_budget),
        "max_planning": number_of("--max-planning", max_planning),
    }


def fused(fuse: Optional[FuseChoice], no_fuse: bool) -> "bool | str":
    """The option ``fuse`` of `echo.plan`.

    Raises:
        OptionError: both are given.
    """
    if fuse and no_fuse:
        raise OptionError(f"expected --no-fuse or --fuse {fuse.value}, got both")
    return fuse.value if fuse else not no_fuse


def check_unused(given: Mapping[str, Any], more_defaults: Mapping[str, Any], why: str) -> None:
    """Raises `OptionError` for an option with another value than its default, where it would change nothing.

    Defaults are those of `echo.plans.options.Options`, and ``more_defaults``.
    """
    from echo.plans.options import Options

    defaults = {**vars(Options()), **more_defaults}
    for name, value in given.items():
        if value != defaults[name]:
            option = "--no-fuse" if name == "fuse" and not value else f"--{name.replace('_', '-')}"
            raise OptionError(f"{option} {why}")


def printable(text: str) -> str:
    """The text with characters that would steer a terminal, such as escapes in names of nodes, as ``\\x1b``."""
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) != "Cc" else f"\\x{ord(character):02x}"
        for character in text
    )


def _print(text: str) -> None:
    """Prints at once, so that an error, as of a full disk, can name what was written to."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def say(result: object) -> None:
    """Prints a result of a command for people."""
    _print(printable(str(result)))


def print_json(value: Any) -> None:
    """Prints a result of a command for programs."""
    _print(json.dumps(value, allow_nan=False))


def check_folders(*files: Optional[str]) -> None:
    """Checks that files can be written into their folders, before the work whose results go there.

    Raises:
        OptionError: one cannot; the message names the reason.
    """
    for file in filter(None, files):
        folder = os.path.dirname(file) or "."
        if os.path.isdir(file):
            raise OptionError(f"{file} cannot be written: it is a folder")
        if not os.path.isdir(folder):
            raise OptionError(f"{file} cannot be written: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise OptionError(f"{file} cannot be written: nothing may be written into {folder}")


class WithUsage(TyperCommand):
    """A command whose error for an option without its value names the command, which typer's own does not."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                vars(error).update(ctx=ctx, cmd=self)
            raise
