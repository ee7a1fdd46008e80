"""Whose bind it is, is known by thread, and goes back to what it was."""

from __future__ import annotations

import threading

import pytest

from echo.system.own_binds import are_own, own_binds


def test_they_are_echos_own_while_it_is_open() -> None:
    assert not are_own()
    with own_binds():
        with pytest.raises(KeyError), own_binds():
            raise KeyError
        assert are_own(), "the inner one does not end the outer one"
    assert not are_own()


def test_another_thread_binds_for_itself() -> None:
    seen: list[bool] = []
    with own_binds():
        other = threading.Thread(target=lambda: seen.append(are_own()))
        other.start()
        other.join()
    assert seen == [False]
