"""The exceptions that echo raises.

::

    EchoError
    ├── GraphError            a symbol, saved graph or plan is malformed
    │   └── ShapeError        a shape or type that planning needs is unknown
    ├── OptionError           an option has a value that echo does not know (also a ValueError)
    ├── BudgetError           a memory budget that no plan can meet
    ├── TimeLimitError        a bound on the time of a step that no plan can meet
    ├── NativeError           the native library is missing, damaged, or does not fit this MXNet
    ├── KernelError           a fused kernel was called with tensors or parameters that it does not take
    ├── PlanError             a plan is to be applied to something that it was not made for
    ├── ChangedInputError     an input that backward reads again was written since the forward pass
    ├── VerificationError     under ``verify``: a plan's results differ from the original graph's
    └── UnsupportedError      MXNet's version, or a graph that echo cannot work on
        └── LeftAloneError    a graph of a kind that echo leaves alone, about which there is nothing to warn
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import FrameType
from typing import Any, Iterable, Iterator

REPORT = "If that looks like a fault of echo, please report it with the traceback, which ECHO_STRICT=1 shows"
_LONGEST = 400  # characters of a line about an error
# In MXNet's errors: when, and where in its sources.
_PLACE = re.compile(r"\[\d\d:\d\d:\d\d\] (?:\S+\.(?:cc|h|cu):\d+: )?")


def without_places(text: str) -> str:
    """A message of MXNet's on one line, without the time and the places in MXNet's sources."""
    return " ".join(_PLACE.sub("", text).split())


def one_line(error: BaseException) -> str:
    """The kind of an error and its message, as one line that is not too long: MXNet's have many, and the time."""
    text = without_places(f"{type(error).__name__}: {error}").rstrip(":")  # some have no message
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


# Interruptions: errors by which a program ends what takes too long, such as echo's planning.
#
# A signal handler raises them, or another thread sets them (``PyThreadState_SetAsyncExc``). Whatever echo was doing, it
# handles none of them: they end its work and reach the program, as they would in a long call of MXNet's.

_FAMILIAR = ("builtins", "echo", "mxnet", "numpy")


def reraise_interruption(error: BaseException) -> None:
    """Raises the interruption that an error is, or that it was made from; does nothing for any other error."""
    cause: BaseException | None = error
    while cause is not None:
        if _by_handler(cause) or _by_thread(cause):
            raise cause
        cause = cause.__cause__


def _by_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it: a function with an argument that is the frame that it interrupted."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(value is outer for outer, inner in zip(frames, frames[1:]) for value in _values(inner))


def _values(frame: FrameType) -> Iterator[object]:
    for value in frame.f_locals.values():
        yield value
        if isinstance(value, tuple):  # of ``*arguments``
            yield from value


def _by_thread(error: BaseException) -> bool:
    """Whether another thread set it: none of the code that ran is from where its class is."""
    ran = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return not _is_familiar(type(error).__module__) and all(map(_is_familiar, ran))


def _is_familiar(module: str) -> bool:
    """Whether a module is of echo, MXNet, numpy or Python's own library."""
    top = module.partition(".")[0]
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    is_of_python = path.startswith(os.path.dirname(os.__file__)) and "-packages" not in path
    return top in _FAMILIAR or top in sys.builtin_module_names or is_of_python


def did_you_mean(word: str, words: Iterable[str], before: str = "") -> str:
    """A question that names up to three of the words, those most alike, after a text; empty where none is."""
    import difflib  # not at each start

    alike = difflib.get_close_matches(word, list(words), 3)
    return f"{before}did you mean {' or '.join(alike)}?" if alike else ""


def _sizes(size: int) -> str:
    """Bytes, and in brackets as a rounded size where they are many."""
    return f"{size:,} bytes ({size / 1e6:,.1f} MB)" if size >= 1e6 else f"{size:,} bytes"


_MOST_OPERATORS = 12


def matches_no_node(option: str, pattern: str, operators: Iterable[str], names: Iterable[str]) -> str:
    """A text for a pattern that matches none of a graph's operators, nor of the ``names`` of its nodes."""
    kinds = sorted(set(operators))
    alike = did_you_mean(pattern, {*kinds, *names})
    return (
        f"{option}: {pattern!r} matches no node, expected a node's name, an operator or a pattern of either; "
        f"{f'{alike} The' if alike else 'the'} graph has the operators {', '.join(kinds[:_MOST_OPERATORS])}"
    )


class EchoError(Exception):
    """Base of everything that echo raises on purpose.

    ``stages`` are those of a planning that an error ended: the last one raised it, the others had run before.
    """

    stages: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = super().__str__()
        if not self.stages:
            return text
        *before, last = self.stages
        return f"{text} (in the stage {last}{', after ' if before else ''}{', '.join(before)})"


class GraphError(EchoError):
    """A symbol, saved graph or plan is malformed."""


class ShapeError(GraphError):
    """A shape or type that planning needs is unknown."""


class OptionError(EchoError, ValueError):
    """An option has a value that echo does not know."""


class BudgetError(EchoError):
    """A memory budget cannot be met.

    ``budget`` and ``reachable`` are bytes: the requested budget and the least that any plan needs. ``given`` is the
    budget as the user gave it, where that was a size or a fraction.
    """

    def __init__(self, budget: int, reachable: int, holders: str, condition: str = "", given: str = "") -> None:
        self.budget, self.reachable = budget, reachable
        self._arguments = budget, reachable, holders, condition, given
        super().__init__(
            f"memory_budget of {budget:,} bytes{f' ({given})' if given else ''} cannot be met{condition}: "
            f"the least that can be reached is {_sizes(reachable)}. Held at that peak: {holders}"
        )

    def repeating(self, budget: int | float | str | None) -> BudgetError:
        """Returns the same error, which repeats a budget that was given as a size or a fraction."""
        was_no_number = not budget.isdigit() if isinstance(budget, str) else budget is not None and budget <= 1
        return BudgetError(*self._arguments[:-1], given=str(budget)) if was_no_number else self

    def __reduce__(self) -> tuple[Any, ...]:
        return BudgetError, self._arguments


class TimeLimitError(EchoError):
    """A bound on the time of a step, ``max_time``, cannot be met.

    ``max_time`` and ``reachable`` are multiples of a step of the original graph: the bound, and the time of the fastest
    plan, which needs so many ``bytes``.
    """

    def __init__(self, max_time: float, reachable: float, bytes: int) -> None:
        self.max_time, self.reachable, self.bytes = max_time, reachable, bytes
        super().__init__(
            f"max_time of {max_time:g} cannot be met: the least that can be reached is {reachable:.2f} times a step of "
            f"the original graph, with {_sizes(bytes)} held by the executor"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return TimeLimitError, (self.max_time, self.reachable, self.bytes)


class NativeError(EchoError):
    """The native library is missing, damaged, or does not fit this MXNet."""


class KernelError(EchoError):
    """A fused kernel was called with tensors or parameters that it does not take, or its device failed."""


class PlanError(EchoError):
    """A plan was made for another graph, other shapes, another device, or another way of applying it."""


class ChangedInputError(EchoError):
    """A parameter or input was written between forward and backward, and the plan reads it again in backward.

    It is raised before anything of the backward pass runs. The gradients would be those of a mixture of old and new
    values, where MXNet's own graph holds the feature maps of the forward pass.
    """


class VerificationError(EchoError):
    """Under ``verify`` and ``strict``: a plan's results differ from the original graph's; the message names them."""


class UnsupportedError(EchoError):
    """This MXNet version or this graph is not one that echo can work on."""


class LeftAloneError(UnsupportedError):
    """A graph that MXNet trains and echo leaves as it is: MXNet does not bind it as planning has to."""
