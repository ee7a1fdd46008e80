"""The runner hands values on, checks what passes need and give, and names the pass that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import pytest

from echo.errors import BudgetError, EchoError, ShapeError
from echo.passes.base import run
from echo.pipeline import PIPELINE


@dataclass(frozen=True)
class Stage:
    """A pass made of a function."""

    name: str
    needs: tuple[type, ...]
    gives: type
    function: Callable[..., Any] = field(default=lambda *values: values)

    def run(self, *values: Any) -> Any:
        return self.function(*values)


def silent(_: str) -> None:
    """Nobody watches."""


LENGTH = Stage("length", (str,), int, len)
HALF = Stage("half", (int, str), float, lambda length, text: length / 2)


def test_values_are_handed_on_by_type() -> None:
    assert run([LENGTH, HALF], ["hello"], silent) == {str: "hello", int: 5, float: 2.5}


def test_nothing_to_run_gives_what_was_given() -> None:
    assert run([], ["a", 1], silent) == {str: "a", int: 1}


def test_what_is_given_is_not_computed_again() -> None:
    seen: list[str] = []
    assert run([LENGTH, HALF], ["hello", 7], seen.append) == {str: "hello", int: 7, float: 3.5}
    assert seen == ["half"]


def test_progress_names_every_pass() -> None:
    seen: list[str] = []
    run([LENGTH, HALF], ["hello"], seen.append)
    assert seen == ["length", "half"]


def test_missing_value_names_pass_and_type() -> None:
    with pytest.raises(EchoError, match=r"pass half needs int, str, which none of \[\] gave"):
        run([HALF], [], silent)
    with pytest.raises(EchoError, match=r"pass third needs float, which none of \['length'\] gave"):
        run([LENGTH, Stage("third", (float, int), float)], ["hello"], silent)


def test_wrong_type_names_pass_and_types() -> None:
    with pytest.raises(EchoError, match=r"expected a value of type int, got str \(in the stage bad\)"):
        run([Stage("bad", (str,), int, str.upper)], ["hello"], silent)


def test_failure_names_the_pass_and_those_before() -> None:
    def fail(_: int) -> float:
        raise ZeroDivisionError("by zero")

    stages = [LENGTH, Stage("broken", (int,), float, fail)]
    text = r"^ZeroDivisionError: by zero \(in the stage broken, after length\)$"
    with pytest.raises(EchoError, match=text) as caught:
        run(stages, ["hello"], silent)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_echos_own_names_them_too() -> None:
    def fail(_: int) -> float:
        raise ShapeError("no shape")

    with pytest.raises(ShapeError, match=r"^no shape \(in the stage broken, after length\)$") as caught:
        run([LENGTH, Stage("broken", (int,), float, fail)], ["hello"], silent)
    assert caught.value.stages == ("length", "broken")


def test_what_the_user_caused_is_raised_as_it_is() -> None:
    def fail(_: str) -> int:
        raise BudgetError(1, 2, "weights")

    with pytest.raises(BudgetError, match="budget of 1 bytes"):
        run([Stage("choosy", (str,), int, fail)], ["hello"], silent)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(error: type[BaseException]) -> None:
    def fail(_: str) -> int:
        raise error

    with pytest.raises(error):
        run([Stage("slow", (str,), int, fail)], ["hello"], silent)


# The pipeline -------------------------------------------------------------------------------------------------


def test_every_stage_is_given_what_it_needs() -> None:
    from echo.passes.request import Request

    known: set[type] = {Request}
    for stage in PIPELINE:
        assert set(stage.needs) <= known, f"{stage.name} needs what no stage before it gives"
        assert stage.gives not in known, f"{stage.name} gives what was there"
        known.add(stage.gives)


def test_stages_have_names_of_their_own() -> None:
    names = [stage.name for stage in PIPELINE]
    assert len(set(names)) == len(names)


def test_stages_are_values() -> None:
    for stage in PIPELINE:
        assert type(stage)() == stage
        assert hash(type(stage)()) == hash(stage)
        assert repr(stage).startswith(type(stage).__name__)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            type(stage)(colour="red")  # type: ignore[call-arg]
