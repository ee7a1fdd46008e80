"""Python's random generator is left where it was."""

from __future__ import annotations

import contextlib
import random

from echo.system.unmoved import random_unmoved


def test_numbers_drawn_inside_are_drawn_again() -> None:
    state = random.getstate()
    with contextlib.suppress(KeyError), random_unmoved():
        random.random()
        raise KeyError
    assert random.getstate() == state
