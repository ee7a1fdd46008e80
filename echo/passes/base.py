"""A pass takes values and returns a value; the runner checks its contract.

Each pass is a frozen dataclass whose fields are its options. It declares the types that it ``needs`` and the type that
it ``gives``; the runner hands it the values and fails with the pass's name where one is missing or of another type.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Iterable, Mapping, NoReturn, Protocol, Sequence

from echo.errors import BudgetError, EchoError, OptionError, one_line
from echo.passes.invariants import check
from echo.passes.trace import trace
from echo.plans.options import CHECK_VARIABLE, value_of


class Pass(Protocol):
    """A stage of the pipeline: computes one value from others."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> tuple[type, ...]: ...
    @property
    def gives(self) -> type: ...
    def run(self, *values: Any) -> Any: ...


def run(passes: Sequence[Pass], initial_values: Iterable[object], progress: Callable[[str], None]) -> dict[type, Any]:
    """Runs the passes in order and returns every value by its type; a pass whose value is there at first does not run.

    Raises:
        EchoError: a pass failed; the error names it and the passes before it. Errors that are about the user's wishes
            (`OptionError`, `BudgetError`) are raised as they are.
    """
    values: dict[type, Any] = {type(value): value for value in initial_values}
    done: list[str] = []
    tracing = trace()
    for stage in passes:
        if stage.gives in values:
            continue
        missing = [value_type.__name__ for value_type in stage.needs if value_type not in values]
        if missing:
            raise EchoError(f"pass {stage.name} needs {', '.join(missing)}, which none of {done} gave")
        progress(stage.name)
        started = time.perf_counter()
        try:
            value = _checked(stage, stage.run(*(values[value_type] for value_type in stage.needs)), values)
        except Exception as error:
            if tracing is not None:
                tracing.note(stage.name, f"failed: {one_line(error)}")
            if isinstance(error, (OptionError, BudgetError)):
                raise
            _raise(error, (*done, stage.name))
        if tracing is not None:
            tracing.stage(stage.name, value, time.perf_counter() - started)
        values[stage.gives] = value
        done.append(stage.name)
    return values


def _checked(stage: Pass, value: object, values: Mapping[type, Any]) -> object:
    if not isinstance(value, stage.gives):
        raise EchoError(f"expected a value of type {stage.gives.__name__}, got {type(value).__name__}")
    if CHECK_VARIABLE in os.environ and value_of(CHECK_VARIABLE, os.environ):
        check(value, values)
    return value


def _raise(error: Exception, stages: tuple[str, ...]) -> NoReturn:
    """Raises an error with the stages up to the one that failed; an error that is not echo's becomes an `EchoError`."""
    if isinstance(error, EchoError):
        error.stages = stages
        raise error
    unknown = EchoError(f"{type(error).__name__}: {error}")
    unknown.stages = stages
    raise unknown from error
