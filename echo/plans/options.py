"""The options of planning that a user may set, checked where they enter."""

from __future__ import annotations

import itertools
import numbers
import re
import sys
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping

from echo.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from echo.plans.plan import Plan

DEFAULT_MAX_OVERHEAD = 0.10
MEMORY = "memory"  # of the option ``fuse``
AUTO, NEVER_HEAVY = "auto", "never"  # of the option ``heavy``
SEARCH = "search"  # the default policy
POLICY_NAMES = (SEARCH, "echo", "sublinear", "mincut", "ilp", "all", "none")  # the names of `echo.policies`
_MOST_STATES = 16
_MOST = sys.float_info.max  # of a number: a larger one of Python's has no float
_POWERS = ("", "k", "m", "g", "t")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*(%|([kmgt]?)(i?)b?)\s*$", re.IGNORECASE | re.ASCII)

# from an `echo.policies.problem.Problem`, which is above this room, to an `echo.ir.schedule.RecomputeSchedule`
PolicyFunction = Callable[[Any], Any]


@dataclass(frozen=True)
class Options:
    """The options of `echo.optimize` and `echo.plan`.

    policy: "search" (default); "echo", the ISCA'20 algorithm; "sublinear", checkpoints where few bytes cross (Chen et
        al., 2016); "mincut", the least stashed bytes; "ilp", an integer program for small graphs, which needs highspy;
        "all" and "none" recompute everything light, and nothing. Or a function of your own, from an
        `echo.policies.problem.Problem` to a schedule (`echo.ir.schedule.RecomputeSchedule`); its plans are not kept on
        the disk.
    max_overhead: time spent on recomputation, as a fraction of a step of the original graph. "auto" is 0.10, or
        unbounded where ``memory_budget`` or ``max_time`` is given; None is unbounded: then no heavy operator runs twice
        without one of these.
    max_time: the time of a planned step, fused operators and recomputation included, as a multiple of a step of the
        original graph: with 1.0, the seconds that fused operators save buy memory. Both bounds hold where both are
        given. Times are predicted; where seconds could not be measured, a note says so, and the default
        ``max_overhead`` is the bound.
    heavy: "auto" recomputes products, convolutions and other compute-heavy operators too, where their seconds were
        measured, the bounds on time have room, and they save enough; on GPUs only with MXNET_ENFORCE_DETERMINISM=1 or a
        memory budget. "never" runs none of them twice (Echo, ISCA'20, section 4).
    memory_budget: what the executor may hold (arguments, gradients, auxiliary states, planned memory, workspaces of
        fused operators, and ``optimizer_states``): bytes as a
        whole number above 1, a text such as "6GB" (10**9 bytes each; "6GiB" are 2**30 each), or a fraction of what it
        holds without echo, above 0 and at most 1, such as 0.5 or "50%". The fastest plan that fits is chosen.
    keep, recompute: node names or patterns (``fnmatch``: ``*`` and ``?``, also matched against the operator) that are
        stashed or recomputed whatever the policy says; no fused kernel takes their place.
    fuse: fused kernels replace LSTM and GRU cells, attention and others, which takes less memory and time and changes
        the last bits of results. Products with one weight, as of the steps of an RNN, are computed together if that was
        measured to be faster and costs hardly any memory, or fits the budget. False fuses nothing. On a GPU, fused
        operators that may be slower than cuDNN and cuBLAS replace MXNet's only if both forms were timed there and the
        fused one is not slower. "memory" fuses in these cases too, as a memory budget does, and also fuses cells that
        amplify each rounding.
    strict: raise where echo would otherwise warn and hand the original graph back.
    optimizer_states: copies of the weights that the optimizer keeps (0 for SGD, 1 with momentum, 2 for Adam): they
        count in a budget.
    exact: outputs and gradients keep every bit; nothing is fused. By default, last bits may change within the tolerance
        of fused kernels (``docs/reference/fused-kernels.md``).
    max_planning: seconds that planning one graph may take by the clock, None for any. After that the best plan so far
        is taken, and says so. It is a safety net: plans that take less than two thirds of it do not depend on the
        clock. A function as ``policy`` is stopped only where it asks for ``problem.value``.
    plan: plans made before, by `echo.plan` or `echo.load_plan`: one, or several for several graphs or shapes. Each bind
        gets the one that was made for it, and nothing is searched; `PlanError` where there is none.
    verify: before the first training step after a bind, that step also runs as the original graph, in the memory that
        it needs without echo; where outputs, gradients, auxiliary states or random numbers differ, a warning names a
        folder with a report, and the original graph runs from then on.
    """

    policy: str | PolicyFunction = SEARCH
    max_overhead: float | str | None = "auto"
    max_time: float | None = None
    heavy: str = AUTO
    memory_budget: int | float | str | None = None
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    fuse: bool | str = True
    strict: bool = False
    optimizer_states: int = 0
    exact: bool = False
    max_planning: float | None = 10.0
    plan: Plan | Iterable[Plan] = ()
    verify: bool = False

    def __post_init__(self) -> None:
        for name in ("keep", "recompute"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))
        for name in ("max_overhead", "max_time", "memory_budget", "optimizer_states", "max_planning"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        _check_switches(self)
        states = self.optimizer_states
        if isinstance(states, bool) or not isinstance(states, int) or not 0 <= states <= _MOST_STATES:
            raise OptionError(f"optimizer_states: expected a number from 0 to {_MOST_STATES}, got {states!r}")
        object.__setattr__(self, "plan", _plans(self.plan))
        _check_fusion(self)
        if self.max_overhead != AUTO:
            _check_number("max_overhead", self.max_overhead, "a fraction of the step such as 0.10, 'auto' or None")
        _check_number("max_time", self.max_time, "a multiple of the original step such as 1.0, or None", above=True)
        if self.heavy not in (AUTO, NEVER_HEAVY):
            raise OptionError(f"heavy: expected {AUTO!r} or {NEVER_HEAVY!r}, got {self.heavy!r}")
        _check_number("max_planning", self.max_planning, "seconds above 0, or None for any", above=True)
        if self.memory_budget is not None:
            budget_bytes(self.memory_budget, 2**40)
        _check_policy(self.policy)

    @staticmethod
    def of(**values: Any) -> Options:
        """Options by keyword.

        Raises:
            OptionError: an unknown option or a value that makes no sense.
        """
        unknown = sorted(set(values) - set(OPTION_NAMES))
        if unknown:
            question = did_you_mean(unknown[0], OPTION_NAMES, "; ")
            raise OptionError(f"unknown option {unknown[0]!r}, expected one of {', '.join(OPTION_NAMES)}{question}")
        return Options(**values)

    @cached_property
    def key(self) -> str:
        """A text that is equal for options with equal plans."""
        budget = self.memory_budget
        budget = budget if isinstance(budget, str) or budget is None else float(budget)
        function = None if isinstance(self.policy, str) else self.policy
        policy, own = (self.policy, "") if function is None else (SEARCH, f" {_number_of(function)}")
        return repr(replace(self, policy=policy, memory_budget=budget, strict=False, plan=(), verify=False)) + own

    @property
    def fuses(self) -> bool:
        """Whether operators may be fused."""
        return bool(self.fuse) and not self.exact

    @property
    def user_constraints(self) -> tuple[str, ...]:
        """The names and patterns of operators that have to stay: no fused operator may take their place."""
        return (*self.keep, *self.recompute)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made before."""
        return self.plan  # type: ignore[return-value]  # a tuple since it came in

    @property
    def overhead_bound(self) -> float | None:
        """The bound on recomputation as a fraction of a step of the original graph, or None."""
        if self.max_overhead == AUTO:
            has_other = self.memory_budget is not None or self.max_time is not None
            return None if has_other else DEFAULT_MAX_OVERHEAD
        return self.max_overhead  # type: ignore[return-value]

    @property
    def is_bounded_by_time(self) -> bool:
        """Whether ``max_time`` alone is given, in the place of the default ``max_overhead``."""
        return self.max_time is not None and self.max_overhead == AUTO and self.memory_budget is None

    @property
    def asks_for_memory(self) -> bool:
        """Whether less memory is wanted whatever it takes: by a budget, by ``fuse="memory"``, or without a bound."""
        return self.memory_budget is not None or self.fuse == MEMORY or self.overhead_bound is None


def renamed(message: str, names: Mapping[str, str]) -> str:
    """The message of an error about an option, with the name by which the user knows it, if ``names`` has one."""
    option = re.match(r"\w+(?=:| of )", message)
    return message if option is None else names.get(option[0], option[0]) + message[option.end() :]


OPTION_NAMES = tuple(item.name for item in fields(Options))
_NUMBERS = itertools.count()
_FUNCTIONS: dict[PolicyFunction, int] = {}  # policies of users, by which keys of plans tell them apart
_UNHASHABLE: dict[int, tuple[PolicyFunction, int]] = {}  # the same by identity, which lasts while they are kept


def _number_of(function: PolicyFunction) -> int:
    try:
        return _FUNCTIONS.setdefault(function, next(_NUMBERS))
    except TypeError:
        return _UNHASHABLE.setdefault(id(function), (function, next(_NUMBERS)))[1]


def policy_name(policy: str | PolicyFunction) -> str:
    """Returns the name under which a plan has its policy: of a function, its module and its name."""
    if isinstance(policy, str):
        return policy
    kind = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{kind.__module__}.{kind.__qualname__}"


def plain(value: Any) -> Any:
    """A number of numpy's as one of Python's, which keys are made of; any other value as it is."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value


def items_of(value: Any) -> tuple[Any, ...]:
    """The items of a list or another iterable; a text, a mapping, or what is no iterable, as the only item."""
    is_one = isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable)
    return (value,) if is_one else tuple(value)


def _plans(value: Plan | Iterable[Plan]) -> tuple[Plan, ...]:
    if isinstance(value, tuple) and not value:
        return ()
    from echo.plans.plan import Plan  # numpy is needed for plans, not for options

    plans = items_of(value)
    for plan in plans:
        if not isinstance(plan, Plan):
            raise OptionError(f"plan: expected a Plan or several, as of echo.load_plan, got {plan!r}")
    return plans


def _patterns(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    patterns = items_of(value)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise OptionError(f"{name}: expected names or patterns, got {pattern!r}")
    return patterns


def _check_policy(value: Any) -> None:
    if callable(value) or (isinstance(value, str) and value in POLICY_NAMES):
        return
    names = ", ".join(POLICY_NAMES)
    if not isinstance(value, str):
        raise OptionError(f"policy: expected one of {names}, or a function, got {value!r}")
    hint = "; 'exact' is now 'ilp'" if value == "exact" else did_you_mean(value, POLICY_NAMES, "; ")
    raise OptionError(f"policy: expected one of {names}, got {value!r}{hint}")


def _check_switches(options: Options) -> None:
    for name in ("strict", "exact", "verify"):
        if not isinstance(getattr(options, name), bool):
            raise OptionError(f"{name}: expected True or False, got {getattr(options, name)!r}")
    if not isinstance(options.fuse, bool) and options.fuse != MEMORY:
        raise OptionError(f"fuse: expected True, False or {MEMORY!r}, got {options.fuse!r}")


def _check_fusion(options: Options) -> None:
    if options.exact and options.fuse == MEMORY:
        raise OptionError(f"fuse: expected no {MEMORY!r} where every bit is kept (exact), which fuses nothing")
    if not options.fuses and any(plan.fused for plan in options.plans):
        way = "exact=True" if options.exact else "fuse=False"
        raise OptionError(f"plan: expected none with fused operators with {way}, which fuses nothing")


def _check_number(name: str, value: object, expected: str, above: bool = False) -> None:
    """Raises unless a value is None, or a number from 0 on, or ``above`` it."""
    if value is not None and not (_is_number(value) and (value or not above)):
        raise OptionError(f"{name}: expected {expected}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST


def budget_bytes(value: int | float | str, stock: int) -> int:
    """A memory budget in bytes; ``stock`` is what the original graph holds.

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
    if isinstance(amount, str) or not _is_number(amount) or not amount:
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
