"""Python's search for garbage is off inside, and afterwards as it was."""

from __future__ import annotations

import contextlib
import gc

import pytest

from echo.system.collect import without_garbage_collection


@pytest.mark.parametrize("on", [True, False])
def test_it_is_off_inside_and_as_it_was_afterwards(on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with contextlib.suppress(KeyError), without_garbage_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()
