"""Locks: one thread at a time, the same one as often as it likes, and free in a forked child."""

from __future__ import annotations

import os
import threading

import pytest

from echo.system.threads import Lock, Once, PerThread, are_own, own_binds


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


def test_per_thread_value_holds_inside_its_block() -> None:
    value = PerThread("default")
    with value.set_to("outer"):
        with value.set_to("inner"):
            assert value.value == "inner"
        assert value.value == "outer", "the inner one does not end the outer one"
    assert value.value == "default"


def test_per_thread_value_ends_with_an_error() -> None:
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


def test_a_text_is_new_once() -> None:
    once = Once()
    assert [once.first(text) for text in ("a", "b", "a", "b")] == [True, True, False, False]
    assert Once().first("a"), "each of them remembers for itself"


def test_forgotten_message_is_first_again() -> None:
    once = Once()
    once.first("a")
    once.forget()
    assert once.first("a")


def test_one_of_many_threads_is_first() -> None:
    once, answers = Once(), []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        answers.extend(once.first(str(number)) for number in range(200))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answers) == 200
    assert len(answers) == 8 * 200


def test_a_forked_child_remembers_and_does_not_wait() -> None:
    once = Once()
    once.first("said")
    with once._lock.held():
        child = threading.Thread(target=lambda: statuses.append(status_of_child(once)))
        statuses: list[int] = []
        child.start()
        child.join()
    assert statuses == [0]


def status_of_child(once: Once) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if once.first("news") and not once.first("said") else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_own_binds_are_own_inside_their_block() -> None:
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
