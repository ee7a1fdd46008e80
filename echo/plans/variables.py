"""The ``ECHO_*`` variables: one table, how the text of each is read, and the options that they make."""

from __future__ import annotations

import logging
import math
import os
import re
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple

from echo.errors import GraphError, OptionError
from echo.plans.options import AUTO, MEMORY, NEVER_HEAVY, POLICY_NAMES, Options, renamed
from echo.system.threads import ONCE

if TYPE_CHECKING:
    from echo.plans.plan import Plan

logger = logging.getLogger("echo")


def options_from(environment: Mapping[str, str]) -> Options:
    """Options from the ``ECHO_*`` variables (`VARIABLES`).

    Raises:
        OptionError: a variable has a value that echo does not know; the message names it.
    """
    for variable, text in RENAMED.items():
        if environment.get(variable):
            raise OptionError(f"{variable}: this variable is now {text}")
    if DEBUG_VARIABLE in environment:
        value_of(DEBUG_VARIABLE, environment)  # raises if it has a word that echo does not know
    values = {option: value_of(variable, environment) for option, variable in names_of_set(environment).items()}
    try:
        return Options.of(**values)
    except OptionError as error:  # it names the option, and the user knows the variable
        raise OptionError(renamed(str(error), VARIABLE_OF)) from None


def option_of(option: str, text: str, name: str) -> Any:
    """The value of an option in a text that the user gave under a name, read as a variable is.

    Raises:
        OptionError: it has a value that echo does not know; the message has the name.
    """
    try:
        return VARIABLES[VARIABLE_OF[option]][1](text)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


def names_of_set(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that are set, by their options."""
    return {option: variable for option, variable in VARIABLE_OF.items() if environment.get(variable, "").strip()}


def value_of(variable: str, environment: Mapping[str, str]) -> Any:
    """The value of one of the `VARIABLES`, which is in the environment.

    Raises:
        OptionError: it has a value that echo does not know; the message names it.
    """
    _, read, _ = VARIABLES[variable]
    try:
        return read(environment[variable])
    except ValueError as error:
        raise OptionError(f"{variable}: {error}") from None


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Returns a line for each variable that is none of echo's and is spelt almost like one."""
    lines = []
    for name in sorted(environment):
        if name in RENAMED:
            lines.append(f"{name} changes nothing: it is now {RENAMED[name]}")
        elif name.startswith(_PREFIX) and name not in VARIABLES:
            alike = alike_variable(name)
            if alike:
                lines.append(f"{name} is no variable of echo's and changes nothing: did you mean {alike}?")
    return lines


def warn_of_misspelt(warn: Callable[[str], object]) -> None:
    """Has ``warn`` say, once a process, which variables of the environment are misspelt (`misspelt`)."""
    for line in filter(ONCE.first, misspelt(os.environ)):
        warn(line)


def alike_variable(name: str) -> str:
    """Returns the variable that is meant by a name with some letters wrong or a word left out; empty if none is."""
    import difflib  # not at each start

    part = name[len(_PREFIX) - 1 :]
    longer = [variable for variable in VARIABLES if len(part) >= _PART and part in variable]
    if longer:
        return longer[0]
    parts = {variable[len(_PREFIX) :]: variable for variable in VARIABLES if variable.startswith(_PREFIX)}
    return next((parts[each] for each in difflib.get_close_matches(name[len(_PREFIX) :], parts, 1, _ALIKE)), "")


def is_on(text: str) -> bool:
    """A switch in the environment.

    Raises:
        OptionError: neither on nor off.
    """
    word = text.strip().lower()
    if word not in (*_ON, *_OFF):
        raise OptionError(f"expected one of {', '.join((*_ON, *_OFF[1:]))}, got {text!r}")
    return word in _ON


def _fuse(text: str) -> bool | str:
    if text.strip().lower() == MEMORY:
        return MEMORY
    try:
        return is_on(text)
    except OptionError:
        raise ValueError(f"expected {MEMORY}, or one of {', '.join((*_ON, *_OFF[1:]))}, got {text!r}") from None


def _loaded(text: str) -> tuple[Plan, ...]:
    from echo.plans.plan import Plan  # numpy is needed for plans, not for options

    paths, plans = list(filter(None, text.split(os.pathsep))), []
    try:
        for path in paths:
            try:
                plans.append(Plan.load(path))
            except GraphError as error:
                if "of another version of echo" not in str(error):
                    raise
                logger.warning("echo: ECHO_PLAN: %s: a new plan is made", error)
    except (GraphError, OSError) as error:
        raise ValueError(f"expected files that Plan.save wrote: {error}") from None
    if text and not paths:
        raise ValueError(f"expected files that Plan.save wrote, got {text!r}")
    return tuple(plans)


def _number(
    kind: Callable[[str], float], least: float, expected: str, *words: str
) -> Callable[[str], float | str | None]:
    """Returns a function that reads a number of this kind from ``least`` on, or a word, of which "none" is None."""

    def read(text: str) -> float | str | None:
        word = text.strip().lower()
        if word in words:
            return None if word == "none" else word
        try:
            number = kind(word)
        except ValueError:
            number = math.nan
        if not least <= number < math.inf:
            raise ValueError(f"expected {expected}, got {text!r}")
        return number

    return read


def _part(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _word(*words: str) -> Callable[[str], str]:
    """Returns a function that reads one of these words in any case; `Options` refuses others, as they are."""

    def read(text: str) -> str:
        word = text.strip().lower()
        return word if word in words else text

    return read


class Debug(NamedTuple):
    """The words of ``ECHO_DEBUG``, for developers.

    ``dump``: the folder into which each stage of planning writes its result as text; ``\\,`` is a comma in its name
    (`escaped`). ``check``: whether the result of
    each stage is checked against the rules of its type. ``level``: the widest vectors of the CPU kernels, "avx512",
    "avx2" or "portable"; empty for the processor's. ``cublas``: whether CUDA kernels use cuBLAS. C++ reads the last two
    (``echo/kernels/debug.h``).
    """

    dump: str = ""
    check: bool = False
    level: str = ""
    cublas: bool = True


def debug() -> Debug:
    """Returns what ``ECHO_DEBUG`` requests.

    Raises:
        OptionError: it has a word that echo does not know.
    """
    found: Debug = value_of(DEBUG_VARIABLE, os.environ) if DEBUG_VARIABLE in os.environ else Debug()
    return found


def _debug(text: str) -> Debug:
    values: dict[str, Any] = {}
    for word in filter(None, map(str.strip, re.split(r"(?<!\\),", text))):
        name, _, value = word.partition("=")
        if word == "check":
            values["check"] = True
        elif name == "dump" and value:
            values["dump"] = value.replace("\\,", ",")
        elif name == "level" and value.lower() in _LEVELS:
            values["level"] = value.lower()
        elif name == "cublas" and value in ("0", "1"):
            values["cublas"] = value == "1"
        else:
            raise ValueError(f"expected dump=FOLDER, check, level={' or '.join(_LEVELS)}, or cublas=0, got {word!r}")
    return Debug(**values)


def escaped(folder: str) -> str:
    """Returns a folder as ``dump=`` takes it."""
    return folder.replace(",", "\\,")


def _listed(text: str) -> tuple[str, ...]:
    patterns = tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())
    if text.strip() and not patterns:
        raise ValueError(f"expected names or patterns, with commas between, got {text!r}")
    return patterns


def _budget(text: str) -> float | str | None:
    word = text.strip().lower()
    if word == "none":
        return None
    try:
        number = float(word)
    except ValueError:
        return text
    return number if 0 < number < math.inf else text  # `Options` refuses it as the user wrote it


DEBUG_VARIABLE = "ECHO_DEBUG"
RECORD_VARIABLE = "ECHO_RECORD"  # `echo.instrument.recording`
_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")
_PREFIX = "ECHO_"
_LEVELS = ("avx512", "avx2", "portable")
_PART = 5  # characters, with the "_" before, of a part of a variable that is meant
_ALIKE = 0.7  # of the letters, after the prefix, of a variable that is meant
# variables of release candidates, and what takes their place
RENAMED = {
    "ECHO_TRACE": f"{DEBUG_VARIABLE}=dump=FOLDER",
    "ECHO_CHECK": f"{DEBUG_VARIABLE}=check",
    "ECHO_CUBLAS": f"{DEBUG_VARIABLE}=cublas=0",
    "ECHO_KERNELS_LEVEL": f"{DEBUG_VARIABLE}=level=avx2",
}
_ABOVE_0 = 5e-324  # the smallest number of Python's
_fraction = _number(_part, 0, "a fraction of the step such as 0.10 or 10%, auto or none", "none", "auto")
_multiple = _number(_part, _ABOVE_0, "a multiple of the step above 0 such as 1.0, or none", "none")
_seconds = _number(float, _ABOVE_0, "seconds above 0 such as 10, or none", "none")
_count = _number(int, 0, "a number from 0 on, such as 2")
# variable: (option, how it is read, what it means); all that users may set
VARIABLES: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "ECHO": ("", is_on, "1 optimizes every training symbol that is bound, with no change to the program"),
    "ECHO_POLICY": ("policy", _word(*POLICY_NAMES), f"{', '.join(POLICY_NAMES[:-1])} or {POLICY_NAMES[-1]}"),
    "ECHO_MAX_OVERHEAD": ("max_overhead", _fraction, "fraction of the step, or none"),
    "ECHO_MAX_TIME": ("max_time", _multiple, "a planned step as a multiple of the original one, as 1.0, or none"),
    "ECHO_HEAVY": ("heavy", _word(AUTO, NEVER_HEAVY), "auto, or never: no compute-heavy operator runs twice"),
    "ECHO_MEMORY_BUDGET": ("memory_budget", _budget, "whole bytes, a size such as 6GB, or a fraction as 0.5 or 50%"),
    "ECHO_KEEP": ("keep", _listed, "nodes or operators to stash, names or patterns with commas between"),
    "ECHO_RECOMPUTE": ("recompute", _listed, "nodes or operators to recompute, given the same way"),
    "ECHO_FUSE": ("fuse", _fuse, "0 uses no fused kernels; memory fuses even if slower or less accurate"),
    "ECHO_STRICT": ("strict", is_on, "1 raises where echo would warn and leave a symbol as it is"),
    "ECHO_OPTIMIZER_STATES": ("optimizer_states", _count, "copies of the weights that count in a budget"),
    "ECHO_EXACT": ("exact", is_on, "1 keeps every bit: nothing is fused"),
    "ECHO_MAX_PLANNING": ("max_planning", _seconds, "seconds that planning one graph may take, or none"),
    "ECHO_PLAN": ("plan", _loaded, "files of plans to use for what they were made for, with : between them"),
    "ECHO_VERIFY": ("verify", is_on, "1 runs the first step as the original graph too, and compares"),
    "ECHO_LOG": ("", str, "level of the logger echo: INFO sums a process up, DEBUG says what became of each graph"),
    DEBUG_VARIABLE: ("", _debug, "dump=FOLDER, check, level=avx2 or portable, cublas=0, with commas between"),
    RECORD_VARIABLE: ("", str, "a CSV file for rows of time, memory and energy, with ECHO=0 or ECHO=1"),
    f"{RECORD_VARIABLE}_EVERY": ("", _number(int, 1, "a number of steps from 1 on"), "training steps of a row"),
    f"{RECORD_VARIABLE}_WARMUP": ("", _count, "training steps that are left out of sums"),
    "ECHO_CACHE_DIR": ("", str, "where measured times and plans are kept"),
}
VARIABLE_OF = {option: variable for variable, (option, _, _) in VARIABLES.items() if option}
