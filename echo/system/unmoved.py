"""Python's random generator, restored after printing through rich, whose import draws from it."""

from __future__ import annotations

import contextlib
import random
from typing import Iterator


@contextlib.contextmanager
def random_unmoved() -> Iterator[None]:
    """Restores the state of Python's random generator at the end."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
