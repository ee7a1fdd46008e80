"""A pass takes values and returns a value; the runner checks its contract.

Each pass is a frozen dataclass whose fields are its options. It declares the types that it ``needs`` and the type that
it ``gives``; the runner hands it the values and fails with the pass's name where one is missing or of another type.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, Protocol, Sequence

from echo.errors import EchoError
from echo.passes.trace import trace


class Pass(Protocol):
    """One stage of the pipeline."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> tuple[type, ...]: ...
    @property
    def gives(self) -> type: ...
    def run(self, *values: Any) -> Any: ...


def run(passes: Sequence[Pass], given: Iterable[object], progress: Callable[[str], None]) -> dict[type, Any]:
    """Runs the passes in order and returns every value by its type.

    Raises:
        EchoError: what a pass raised, with the passes that ran before it; or `ECHO_TRACE` is no folder to write to.
    """
    values: dict[type, Any] = {type(value): value for value in given}
    done: list[str] = []
    tracing = trace()
    for stage in passes:
        missing = [kind.__name__ for kind in stage.needs if kind not in values]
        if missing:
            raise EchoError(f"pass {stage.name} needs {', '.join(missing)}, which none of {done} gave")
        progress(stage.name)
        started = time.perf_counter()
        try:
            value = stage.run(*(values[kind] for kind in stage.needs))
        except EchoError:
            raise
        except Exception as error:
            raise EchoError(f"pass {stage.name} failed after {done}: {type(error).__name__}: {error}") from error
        if not isinstance(value, stage.gives):
            raise EchoError(f"pass {stage.name} must give {stage.gives.__name__}, gave {type(value).__name__}")
        if tracing is not None:
            tracing.stage(stage.name, value, time.perf_counter() - started)
        values[stage.gives] = value
        done.append(stage.name)
    return values
