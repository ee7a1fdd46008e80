"""Locks: one thread at a time, the same one as often as it likes, and free in a forked child."""

from __future__ import annotations

import os
import threading

import pytest

from echo.system.locks import Lock


def is_free(lock: Lock) -> bool:
    """Whether another thread gets the lock at once."""
    entered = threading.Event()

    def enter() -> None:
        with lock.held():
            entered.set()

    other = threading.Thread(target=enter, daemon=True)
    other.start()
    return entered.wait(0.2)


def test_one_thread_at_a_time() -> None:
    lock = Lock()
    with lock.held():
        with lock.held():
            assert not is_free(lock)
        assert not is_free(lock), "it was taken twice"
    assert is_free(lock)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_finds_it_free() -> None:
    lock, ready, done = Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held():
            ready.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert ready.wait(60)
    child = os.fork()
    if not child:
        os._exit(0 if is_free(lock) else 1)
    status = os.waitpid(child, 0)[1]
    free_here = is_free(lock)
    done.set()
    holder.join()
    assert os.WEXITSTATUS(status) == 0
    assert not free_here, "in the parent it is still held"
