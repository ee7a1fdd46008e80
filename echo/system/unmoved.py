"""Python's random generator, restored after printing through rich, whose import draws from it."""

from __future__ import annotations

import contextlib
import random
from typing import Iterator


@contextlib.contextmanager
def random_unmoved() -> Iterator[None]:
    """Python's random generator is at the end where it was at the beginning."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
