"""Messages that are logged once a process: twenty buckets that fail alike cost one line in the log."""

from __future__ import annotations

from echo.system.locks import Lock


class Once:
    """Remembers texts, so that each is said once. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._said: set[str] = set()

    def first(self, text: str) -> bool:
        """Returns whether this is the first call with this text."""
        with self._lock.held():
            is_new = text not in self._said
            self._said.add(text)
        return is_new

    def forget(self) -> None:
        """Forgets all texts: each is new again."""
        with self._lock.held():
            self._said.clear()


ONCE = Once()  # of the process
