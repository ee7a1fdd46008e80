"""A value of one thread, which goes back to what it was."""

from __future__ import annotations

import threading

import pytest

from echo.system.per_thread import PerThread


def test_it_holds_while_it_is_open() -> None:
    value = PerThread("default")
    with value.set_to("outer"):
        with value.set_to("inner"):
            assert value.value == "inner"
        assert value.value == "outer", "the inner one does not end the outer one"
    assert value.value == "default"


def test_it_ends_with_an_error() -> None:
    value = PerThread(0)
    with pytest.raises(KeyError), value.set_to(1):
        raise KeyError
    assert value.value == 0


def test_another_thread_has_its_own() -> None:
    value, seen = PerThread(0), []

    def look() -> None:
        seen.append(value.value)
        with value.set_to(2):
            entered.set()
            left.wait()

    entered, left = threading.Event(), threading.Event()
    with value.set_to(1):
        other = threading.Thread(target=look)
        other.start()
        entered.wait()
        seen.append(value.value)
        left.set()
        other.join()
    assert seen == [0, 1]


def test_values_are_apart() -> None:
    one, other = PerThread(0), PerThread(0)
    with one.set_to(1):
        assert (one.value, other.value) == (1, 0)
