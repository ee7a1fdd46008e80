"""Arguments and options that several commands share: their help, how their texts are read, and errors of usage."""

import inspect
import json
import os
import sys
import unicodedata
from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import typer
from typer.core import TyperCommand

from echo.errors import BudgetError, OptionError, TimeLimitError, did_you_mean

# Modules with commands are imported for each ``--help``, so nothing here or there imports numpy, rich or MXNet before
# a command runs. Annotations are evaluated at run time, so they use only syntax of Python 3.8.

if sys.version_info >= (3, 9):
    from typing import Annotated as Annotated
else:
    from typing_extensions import Annotated as Annotated  # which typer brings for Python 3.8

_SHOWN = 80  # characters of an invalid text
_IN_ASCII = str.maketrans("━─┃│┏┳┓┡╇┩└┴┘├┼┤", "--||++++++++++++")  # borders of tables


PerhapsShapes = Annotated[
    Optional[List[str]], typer.Argument(metavar="[NAME=SHAPE...]", help="Shapes of inputs, as data=128,50.")
]
_Text, _Texts = Optional[str], Optional[List[str]]
PolicyName = Annotated[
    Optional[str],
    typer.Option("--policy", metavar="NAME", help="search (default), echo, sublinear, mincut, ilp, all or none."),
]
# The options of `echo.Options`, by the names of flags: texts that are read as those of variables.
_FLAGS: Dict[str, Any] = {
    "policy": PolicyName,
    "max_overhead": Annotated[
        _Text, typer.Option(metavar="VALUE", help="Bound on recomputation: a part of the step, auto (0.10) or none.")
    ],
    "max_time": Annotated[
        _Text, typer.Option(metavar="VALUE", help="Bound on a step: a multiple of the original one as 1.0, or none.")
    ],
    "heavy": Annotated[
        _Text, typer.Option(metavar="WHEN", help="auto, or never: no product and no convolution runs twice.")
    ],
    "memory_budget": Annotated[
        _Text, typer.Option(metavar="VALUE", help='Bytes, "6GB", or a part of the memory without echo: "50%", 0.5.')
    ],
    "max_planning": Annotated[
        _Text, typer.Option(metavar="SECONDS", help="Seconds that planning one graph may take (10), or none for any.")
    ],
    "optimizer_states": Annotated[
        _Text, typer.Option(metavar="N", help="Copies of the weights that the optimizer keeps: momentum 1, Adam 2.")
    ],
    "keep": Annotated[_Texts, typer.Option(metavar="PATTERN", help="Nodes or operators to stash; may be repeated.")],
    "recompute": Annotated[_Texts, typer.Option(metavar="PATTERN", help="Nodes to recompute; may be repeated.")],
    "no_fuse": Annotated[bool, typer.Option("--no-fuse", help="No fused kernels, as --fuse 0.")],
    "fuse": Annotated[
        _Text, typer.Option(metavar="WHEN", help="1, 0, or memory: fuse also where kernels are slower.")
    ],
    "exact": Annotated[bool, typer.Option("--exact", help="Keep every bit: nothing is fused.")],
    "strict": Annotated[bool, typer.Option("--strict", help="Raise where echo would warn and leave a graph as it is.")],
    "plan": Annotated[
        _Text, typer.Option(metavar="FILES", help="A plan saved before, or several with : between.")
    ],
    "verify": Annotated[bool, typer.Option("--verify", help="Run the first step as the original graph, too.")],
}  # fmt: skip


def flag_of(option: str) -> str:
    """The option of the command line for an option of `echo.Options`."""
    return f"--{option.replace('_', '-')}"


FLAGS_WITH_VALUES = tuple(flag_of(name) for name, kind in _FLAGS.items() if kind.__origin__ is not bool)
Dump = Annotated[
    Optional[str],
    typer.Option(metavar="FOLDER", help="Write the result of each stage, as ECHO_DEBUG=dump=FOLDER does."),
]


_Command = Callable[..., None]


def takes_options(*left_out: str) -> Callable[[_Command], _Command]:
    """Gives a command, which takes ``**flags``, the flags of `echo.Options` but those left out."""

    def with_flags(command: _Command) -> _Command:
        flags = {name: kind for name, kind in _FLAGS.items() if name not in left_out}
        signature = inspect.signature(command)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        defaults = {name: False if kind.__origin__ is bool else None for name, kind in flags.items()}
        made = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in flags.items()
        ]
        vars(command)["__signature__"] = signature.replace(parameters=[*own, *made])
        command.__annotations__.update(flags)
        return command

    return with_flags


def given(flags: Mapping[str, Any]) -> Dict[str, Any]:
    """The flags that are given, by their names, with their texts.

    Raises:
        OptionError: ``--fuse`` is given next to ``--no-fuse``, or fuses next to ``--exact``.
    """
    from echo.plans.variables import option_of

    fuse = flags.get("fuse")
    if flags.get("no_fuse") and fuse is not None:
        raise OptionError(f"expected --no-fuse or --fuse {fuse}, got both")
    if flags.get("exact") and fuse is not None and option_of("fuse", fuse, flag_of("fuse")):
        raise OptionError(f"expected --exact or --fuse {fuse}, got both")
    return {name: value for name, value in flags.items() if value not in (None, False, [], ())}


def options_of(flags: Mapping[str, Any]) -> Dict[str, Any]:
    """The options of `echo.plan` that are given, with their values.

    Raises:
        OptionError: one has a value that echo does not know; the message names the flag.
    """
    from echo.plans.variables import option_of

    options = given(flags)
    for name, value in options.items():
        if isinstance(value, str):
            options[name] = option_of(name, value, flag_of(name))
    return {**options, "fuse": False} if options.pop("no_fuse", False) else options


def _refuse_trace(value: Optional[str]) -> None:
    if value is not None:
        raise OptionError("--trace: this option is now --dump FOLDER")


OldTrace = Annotated[Optional[str], typer.Option("--trace", hidden=True, callback=_refuse_trace)]
Budgets = Annotated[
    int, typer.Option(metavar="N", help="Also plan for N memory budgets, 2 to 100.", show_default=False)
]
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
        sizes = sizes.strip("()")
        shape = tuple(map(int, sizes[: -1 if sizes.endswith(",") else None].split(","))) if sizes else ()
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


def check_order(symbol: str) -> None:
    """Raises `OptionError` if the first word of a command is no symbol but a shape."""
    if "=" in symbol and not os.path.exists(symbol):
        raise OptionError(f"expected a symbol before the shapes of its inputs, got {symbol!r}")


def check_unused(flags: Mapping[str, Any], why: str) -> None:
    """Raises `OptionError` for an option that is given where it would change nothing."""
    for name, value in flags.items():
        if value:
            raise OptionError(f"{flag_of(name)} {why}")


def printable(text: str) -> str:
    """The text with characters that would steer a terminal, such as escapes in names of nodes, as ``\\x1b``."""
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) != "Cc" else f"\\x{ord(character):02x}"
        for character in text
    )


def said(error: Exception) -> str:
    """The message of an error with names of flags, and without the number that the system has for it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if not isinstance(error, (OptionError, BudgetError, TimeLimitError)):
        return str(error)
    from echo.plans.options import OPTION_NAMES, renamed

    return renamed(str(error), {name: flag_of(name) for name in (*OPTION_NAMES, "budgets")})


def _print(text: str) -> None:
    """Prints at once, so that an error, as of a full disk, can name what was written to."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(_IN_ASCII)
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
    for file in files:
        if file is None:
            continue
        if file in ("", "-"):
            raise OptionError(f"expected the name of a file, got {file!r}")
        folder = os.path.dirname(file) or "."
        if os.path.isdir(file):
            raise OptionError(f"{file} cannot be written: it is a folder")
        if not os.path.isdir(folder):
            raise OptionError(f"{file} cannot be written: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise OptionError(f"{file} cannot be written: nothing may be written into {folder}")


def make_folder(flag: str, folder: Optional[str]) -> None:
    """Makes the folder that an option names.

    Raises:
        OptionError: it cannot be made.
    """
    try:
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{flag}: expected a folder to write to, got {folder!r}: {error.strerror}") from None


class WithUsage(TyperCommand):
    """A command whose error for an option without its value names the command, which typer's own does not."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                vars(error).update(ctx=ctx, cmd=self)
            raise
