"""The match range goes into the environment while it is open, one thread at a time, and back."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest

from echo.frontend.match_range import MATCH_RANGE_VARIABLE, default_match_range, match_range


@pytest.mark.parametrize("before", [None, "4"])
def test_it_is_put_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, "1")
    if before is None:
        monkeypatch.delenv(MATCH_RANGE_VARIABLE)
    else:
        monkeypatch.setenv(MATCH_RANGE_VARIABLE, before)
    with match_range(2):
        assert os.environ[MATCH_RANGE_VARIABLE] == "2"
        with contextlib.suppress(KeyError), match_range(8):
            assert default_match_range() == 8
            raise KeyError
        assert default_match_range() == 2
    assert os.environ.get(MATCH_RANGE_VARIABLE) == before


def test_none_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, "7")
    with match_range(None):
        assert os.environ[MATCH_RANGE_VARIABLE] == "7"


@pytest.mark.parametrize(("text", "expected"), [("4", 4), ("", 16), ("-1", 16), ("many", 16)])
def test_what_mxnet_would_use(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, text)
    assert default_match_range() == expected
    monkeypatch.delenv(MATCH_RANGE_VARIABLE)
    assert default_match_range() == 16


def test_other_threads_wait() -> None:
    entered = threading.Event()

    def enter() -> None:
        with match_range(8):
            entered.set()

    other = threading.Thread(target=enter)
    with match_range(2):
        other.start()
        assert not entered.wait(0.1)
    other.join(60)
    assert entered.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_another_thread_has_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MATCH_RANGE_VARIABLE, "4")
    with match_range(2), match_range(3):
        child = os.fork()
        if not child:
            os._exit(int(os.environ[MATCH_RANGE_VARIABLE]))
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 4
        assert default_match_range() == 3
