"""Forks wait for work that none may fall into, but for those of the thread that does it; children find nothing held."""

from __future__ import annotations

import os
import threading
from typing import Callable

import pytest

from echo.system.threads import without_forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def exit_code(work: Callable[[], bool]) -> int:
    """Of a forked child: 0 where this was true there."""
    child = os.fork()
    if not child:
        os._exit(0 if work() else 1)
    return os.WEXITSTATUS(os.waitpid(child, 0)[1])


def is_open_to_another_thread() -> bool:
    entered = threading.Event()

    def enter() -> None:
        with without_forks():
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered.wait(5)


def test_a_fork_of_another_thread_waits() -> None:
    forked = threading.Event()

    def fork() -> None:
        assert exit_code(is_open_to_another_thread) == 0
        forked.set()

    other = threading.Thread(target=fork, daemon=True)
    with without_forks():
        other.start()
        assert not forked.wait(0.3)
    assert forked.wait(60)
    other.join()


def test_the_thread_itself_may_fork() -> None:
    with without_forks():
        assert exit_code(lambda: True) == 0
    assert is_open_to_another_thread()
