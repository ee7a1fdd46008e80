"""Values that hold for one thread, and for as long as a ``with`` is open."""

from __future__ import annotations

import contextlib
import threading
from typing import Generic, Iterator, TypeVar

T = TypeVar("T")


class PerThread(Generic[T]):
    """A value that a thread sets for a while; outside of `set_to` it is ``default``, in every thread."""

    def __init__(self, default: T) -> None:
        self._default = default
        self._thread = threading.local()

    @property
    def value(self) -> T:
        """The value in the calling thread."""
        value: T = getattr(self._thread, "value", self._default)
        return value

    @contextlib.contextmanager
    def set_to(self, value: T) -> Iterator[None]:
        """Sets the value of the calling thread while this is open. Such contexts nest."""
        before, self._thread.value = self.value, value
        try:
            yield
        finally:
            self._thread.value = before
