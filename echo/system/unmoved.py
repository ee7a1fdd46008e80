"""What is printed through rich, without a trace: importing it draws from Python's random generator."""

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
