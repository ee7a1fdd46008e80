"""The options of planning, in their three spellings: arguments, ``ECHO_*`` variables and flags."""

from __future__ import annotations

import numbers
import os
import re
import sys
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping

from echo.errors import GraphError, OptionError
from echo.system.threads import ONCE

if TYPE_CHECKING:
    from echo.plans.plan import Plan


# The options of planning that a user may set, validated where they enter.

DEFAULT_MAX_OVERHEAD = 0.10
MEMORY = "memory"  # of the option ``fuse``
SEARCH = "search"  # the default policy
POLICY_NAMES = (SEARCH, "echo", "sublinear", "mincut", "exact", "all", "none")  # the names of `echo.policies`
_MOST_STATES = 16
_MOST = sys.float_info.max  # of a number: a larger one of Python's has no float
_POWERS = ("", "k", "m", "g", "t")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(%|([kmgt]?)(i?)b?)\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """The options of `echo.optimize` and `echo.plan`.

    policy: "search" (default); "echo", the ISCA'20 algorithm; "sublinear", checkpoints where few bytes cross (Chen et
        al., 2016); "mincut", the least stashed bytes; "exact", an integer program for small graphs, which needs
        highspy; "all" and "none" recompute everything light, and nothing.
    max_overhead: time spent on recomputation, as a fraction of a training step. "auto" is 0.10, or unbounded where a
        memory budget is given; None is unbounded: still no heavy operator runs twice.
    memory_budget: what the executor may hold (arguments, gradients, auxiliary states, planned memory): bytes as a
        whole number above 1, a text such as "6GB" (10**9 bytes each; "6GiB" are 2**30 each), or a fraction of what it
        holds without echo, above 0 and at most 1, such as 0.5 or "50%". The fastest plan that fits is chosen.
    keep, recompute: node names or patterns (``fnmatch``: ``*`` and ``?``, also matched against the operator) that are
        stashed or recomputed whatever the policy says; no fused kernel takes their place.
    fuse: fused kernels take the place of LSTM and GRU cells and of attention scores: less memory and time, and results
        that differ in their last bits. Products with one weight, as of the steps of an RNN, are put together where that
        was measured to be faster and costs hardly any memory, or fits the budget. False keeps every bit. On a GPU,
        fused operators take the place of MXNet's RNN, of attention over more than 64 features, of a bias with its
        activation, and of a softmax output with its layer only where both forms were timed there and the fused one is
        not slower; "memory" (or a memory budget) takes them anyway.
    strict: raise where echo would otherwise warn and hand the user's own graph back.
    optimizer_states: copies of the weights that the optimizer keeps (0 for SGD, 1 with momentum, 2 for Adam): they
        count in a budget.
    exact: outputs and gradients keep every bit. Without it, gradients of tanh may be computed from its output,
        which changes the last bits of some; the plan says so.
    max_planning: seconds that planning one graph may take by the clock, None for any. After that the best plan so far
        is taken, and says so. It is a safety net: plans that take less than two thirds of it do not
        depend on the clock.
    plan: plans made before, by `echo.plan` or `echo.load_plan`: one, or several for several graphs or shapes. Each bind
        gets the one that was made for it, and nothing is searched; `PlanError` where there is none.
    verify: before the first training step after a bind, that step also runs as the user's own graph, in the memory that
        it needs without echo; where outputs, gradients, auxiliary states or random numbers differ, a warning names a
        folder with a report, and the user's own graph runs from then on.
    """

    policy: str = SEARCH
    max_overhead: float | str | None = "auto"
    memory_budget: int | float | str | None = None
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    fuse: bool | str = True
    strict: bool = False
    optimizer_states: int = 0
    exact: bool = True
    max_planning: float | None = 10.0
    plan: Plan | Iterable[Plan] = ()
    verify: bool = False

    def __post_init__(self) -> None:
        for name in ("keep", "recompute"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))
        for name in ("max_overhead", "memory_budget", "optimizer_states", "max_planning"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        if not isinstance(self.fuse, bool) and self.fuse != MEMORY:
            raise OptionError(f"fuse: expected True, False or {MEMORY!r}, got {self.fuse!r}")
        for name in ("strict", "exact", "verify"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        states = self.optimizer_states
        if isinstance(states, bool) or not isinstance(states, int) or not 0 <= states <= _MOST_STATES:
            raise OptionError(f"optimizer_states: expected a number from 0 to {_MOST_STATES}, got {states!r}")
        object.__setattr__(self, "plan", _plans(self.plan))
        if not self.fuse and any(plan.fused for plan in self.plans):
            raise OptionError("plan: expected none with fused operators beside fuse=False, which keeps every bit")
        _check_overhead(self.max_overhead)
        _check_seconds(self.max_planning)
        if self.memory_budget is not None:
            budget_bytes(self.memory_budget, 2**40)
        if not isinstance(self.policy, str) or self.policy not in POLICY_NAMES:
            raise OptionError(f"policy: expected one of {', '.join(POLICY_NAMES)}, got {self.policy!r}")

    @staticmethod
    def of(**values: Any) -> Options:
        """Options by keyword.

        Raises:
            OptionError: an unknown option or a value that makes no sense.
        """
        names = [item.name for item in fields(Options)]
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise OptionError(f"unknown option {unknown[0]!r}, expected one of {', '.join(names)}")
        return Options(**values)

    @cached_property
    def key(self) -> str:
        """A text that is equal for options with equal plans."""
        budget = self.memory_budget
        budget = budget if isinstance(budget, str) or budget is None else float(budget)
        return repr(replace(self, memory_budget=budget, strict=False, plan=(), verify=False))

    @property
    def wishes(self) -> tuple[str, ...]:
        """The names and patterns of operators that have to stay: no fused operator may take their place."""
        return (*self.keep, *self.recompute)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made before."""
        return self.plan  # type: ignore[return-value]  # a tuple since it came in

    @property
    def overhead_bound(self) -> float | None:
        """The bound on recomputation as a fraction of a step, or None."""
        if self.max_overhead == "auto":
            return None if self.memory_budget is not None else DEFAULT_MAX_OVERHEAD
        return self.max_overhead  # type: ignore[return-value]

    @property
    def asks_for_memory(self) -> bool:
        """Whether less memory is wanted whatever it takes: by a budget, by ``fuse="memory"``, or without a bound."""
        return self.memory_budget is not None or self.fuse == MEMORY or self.overhead_bound is None


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's, which keys are made of; any other value as it is."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value


def _plans(value: Plan | Iterable[Plan]) -> tuple[Plan, ...]:
    if isinstance(value, tuple) and not value:
        return ()
    from echo.plans.plan import Plan  # numpy is needed for plans, not for options

    message = f"plan: expected a Plan or several, as of echo.load_plan, got {value!r}"
    try:
        plans = (value,) if isinstance(value, Plan) else tuple(value)
    except TypeError:
        raise OptionError(message) from None
    if isinstance(value, (str, bytes)) or not all(isinstance(plan, Plan) for plan in plans):
        raise OptionError(message)
    return plans


def _patterns(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    try:
        patterns = (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        raise OptionError(f"{name}: expected names or patterns, got {value!r}") from None
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise OptionError(f"{name}: expected names or patterns, got {value!r}")
    return patterns


def _check_overhead(value: float | str | None) -> None:
    if value is None or value == "auto":
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise OptionError(f"max_overhead: expected a fraction of the step such as 0.10, 'auto' or None, got {value!r}")


def _check_seconds(value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST:
        raise OptionError(f"max_planning: expected seconds above 0, or None for any, got {value!r}")


def budget_bytes(value: int | float | str, stock: int) -> int:
    """A memory budget in bytes; ``stock`` is what the user's own graph holds.

    Raises:
        OptionError: the value is no size, or neither a fraction nor whole bytes.
    """
    message = (
        f"memory_budget: expected whole bytes, a size such as '6GB', or a fraction of what is held without echo, "
        f"above 0 and at most 1, such as 0.5 or '50%', got {value!r}"
    )
    unit, amount = "", value
    if isinstance(value, str):
        match = _SIZE.match(value)
        if not match:
            raise OptionError(message)
        unit, amount = match[2], float(match[1]) * _unit(match[3], match[4])
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount <= _MOST:
        raise OptionError(message)
    is_fraction = unit == "%" or (not unit and amount <= 1)
    amount = amount / 100 if unit == "%" else amount
    is_whole = unit or float(amount).is_integer()
    if not (amount <= 1 if is_fraction else amount >= 1 and is_whole):
        raise OptionError(message)
    return int(amount * stock if is_fraction else amount)


def _unit(prefix: str | None, binary: str | None) -> int:
    """Bytes of a unit: "k" is 1,000, "ki" 1,024; of "%" or no unit 1."""
    base = 2**10 if binary else 10**3
    return int(base ** _POWERS.index((prefix or "").lower()))


# The ``ECHO_*`` variables: one table, how the text of each is read, and the options that they make.


def options_from(environment: Mapping[str, str]) -> Options:
    """Options from the ``ECHO_*`` variables (`VARIABLES`).

    Raises:
        OptionError: a variable has a value that echo does not know; the message names it.
    """
    values: dict[str, Any] = {}
    for variable, (option, _, _) in VARIABLES.items():
        if option and variable in environment:
            values[option] = value_of(variable, environment)
    try:
        return Options.of(**values)
    except OptionError as error:  # it names the option, and the user knows the variable
        option, colon, reason = str(error).partition(":")
        names = {name: variable for variable, (name, _, _) in VARIABLES.items()}
        raise OptionError(f"{names.get(option, option)}{colon}{reason}") from None


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
        if name.startswith(_PREFIX) and name not in VARIABLES and name not in OF_KERNELS:
            alike = alike_variable(name)
            if alike:
                lines.append(f"{name} is no variable of echo's and changes nothing: did you mean {alike}?")
    return lines


def warn_of_misspelt(warn: Callable[[str], object]) -> None:
    """Has ``warn`` say, once a process, which variables of the environment are misspelt (`misspelt`)."""
    for line in filter(ONCE.first, misspelt(os.environ)):
        warn(line)


def alike_variable(name: str) -> str:
    """Returns the variable that is meant by a name with some letters wrong; empty if none is."""
    import difflib  # not at each start

    return next(iter(difflib.get_close_matches(name, [*VARIABLES, *OF_KERNELS], 1, _ALIKE)), "")


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

    try:
        plans = tuple(Plan.load(path) for path in text.split(os.pathsep) if path)
    except (GraphError, OSError) as error:
        raise ValueError(f"expected files that Plan.save wrote: {error}") from None
    if text and not plans:
        raise ValueError(f"expected files that Plan.save wrote, got {text!r}")
    return plans


def _number(text: str) -> float | str | None:
    word = text.strip().lower()
    if word in ("none", "auto"):
        return None if word == "none" else "auto"
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a fraction of the step such as 0.10, auto or none, got {text!r}") from None


def _seconds(text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected seconds such as 10, or none, got {text!r}") from None


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a number such as 2, got {text!r}") from None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def _budget(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


TRACE_VARIABLE = "ECHO_TRACE"  # `echo.passes.pass_manager`
CHECK_VARIABLE, RECORD_VARIABLE = "ECHO_CHECK", "ECHO_RECORD"  # `echo.passes.pass_manager`, `echo.runtime.recording`
_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")
_PREFIX = "ECHO_"
_ALIKE = 0.75  # of the letters of a variable that is meant
# read by the kernels' library, which takes no notice of other values: which it knows, as a pattern and in words
OF_KERNELS = {
    "ECHO_KERNELS_LEVEL": ("(?i:avx512|avx2|portable)", "avx512, avx2 or portable"),
    "ECHO_CUBLAS": ("(?i:1|true|on|yes|0|false|off|no)", "1 or 0"),
}
# variable: (option, how it is read, what it means); all that users may set, two for experiments apart, which C++ reads:
# ECHO_CUBLAS (`kernels/cuda/blas.cc`) and ECHO_KERNELS_LEVEL (`kernels/cpu/level.cc`)
VARIABLES: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "ECHO": ("", is_on, "1 optimizes every training symbol that is bound, with no change to the program"),
    "ECHO_POLICY": ("policy", str, f"{', '.join(POLICY_NAMES[:-1])} or {POLICY_NAMES[-1]}"),
    "ECHO_MAX_OVERHEAD": ("max_overhead", _number, "fraction of the step, or none"),
    "ECHO_MEMORY_BUDGET": ("memory_budget", _budget, "whole bytes, a size such as 6GB, or a fraction as 0.5 or 50%"),
    "ECHO_KEEP": ("keep", _listed, "nodes or operators to stash, names or patterns with commas between"),
    "ECHO_RECOMPUTE": ("recompute", _listed, "nodes or operators to recompute, given the same way"),
    "ECHO_FUSE": ("fuse", _fuse, "0 keeps every bit, without fused kernels; memory fuses where it is slower, too"),
    "ECHO_STRICT": ("strict", is_on, "1 raises where echo would warn and leave a symbol as it is"),
    "ECHO_OPTIMIZER_STATES": ("optimizer_states", _count, "copies of the weights that count in a budget"),
    "ECHO_EXACT": ("exact", is_on, "0 allows plans whose gradients differ in their last bits"),
    "ECHO_MAX_PLANNING": ("max_planning", _seconds, "seconds that planning one graph may take, or none"),
    "ECHO_PLAN": ("plan", _loaded, "files of plans to use for what they were made for, with : between them"),
    "ECHO_VERIFY": ("verify", is_on, "1 runs the first step as the user's own graph too, and compares"),
    "ECHO_LOG": ("", str, "level of the logger echo: INFO sums a process up, DEBUG says what became of each graph"),
    TRACE_VARIABLE: ("", str, "a folder, into which each stage of planning writes what it gave, as text"),
    CHECK_VARIABLE: ("", is_on, "1 checks what each stage of planning gave against the rules of its values"),
    RECORD_VARIABLE: ("", str, "a CSV file for rows of time, memory and energy, beside ECHO=0 or ECHO=1"),
    f"{RECORD_VARIABLE}_EVERY": ("", _count, "training steps of a row"),
    f"{RECORD_VARIABLE}_WARMUP": ("", _count, "training steps that are left out of sums"),
    "ECHO_CACHE_DIR": ("", str, "where measured times and plans are kept"),
}
