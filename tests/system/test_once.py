"""A text is new once."""

from __future__ import annotations

import os
import threading

from echo.system.once import Once


def test_a_text_is_new_once() -> None:
    once = Once()
    assert [once.first(text) for text in ("a", "b", "a", "b")] == [True, True, False, False]
    assert Once().first("a"), "each of them remembers for itself"


def test_what_is_forgotten_is_new() -> None:
    once = Once()
    once.first("a")
    once.forget()
    assert once.first("a")


def test_of_many_threads_one_is_the_first() -> None:
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
