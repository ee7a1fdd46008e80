"""Watching arrays: an array written after a record is named, and nothing else is."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import mxnet.libinfo
import pytest

from echo import native
from echo.frontend.install import install_hook
from echo.native.watch import FailedError, Watch, WatchLibrary, told


@pytest.fixture(scope="module")
def library() -> WatchLibrary:
    assert install_hook() == ""
    return WatchLibrary(native.hook_library(), mxnet.libinfo.find_lib_path()[0])


def arrays(count: int = 2) -> list[Any]:
    return [mx.nd.ones((3,)) for _ in range(count)]


def handles(seen: Sequence[Any]) -> list[Any]:
    return [array.handle for array in seen]


@pytest.mark.parametrize("which", [0, 1])
def test_the_array_that_was_written_is_named(which: int, library: WatchLibrary) -> None:
    seen = arrays()
    watch = Watch(library, ["the first", "the second\nof them"])
    record = watch.record(handles(seen))
    assert record.changed() == ""
    seen[which][:] = 7
    assert record.changed() == ("the first", "the second of them")[which]
    assert watch.record(handles(seen)).changed() == "", "a new record begins again"


def test_reading_is_no_change(library: WatchLibrary) -> None:
    seen = arrays()
    record = Watch(library, ["a", "b"]).record(handles(seen))
    (seen[0] + seen[1]).wait_to_read()
    assert record.changed() == ""


@pytest.mark.parametrize("digests", [True, False])
def test_a_write_of_the_same_values_counts_without_digests(digests: bool, library: WatchLibrary) -> None:
    seen = arrays(1)
    record = Watch(library, ["a"], digests).record(handles(seen))
    seen[0][:] = 1
    assert record.changed() == ("" if digests else "a")


def test_a_watch_may_go_before_its_records(library: WatchLibrary) -> None:
    seen = arrays(1)
    record = Watch(library, ["a"]).record(handles(seen))
    seen[0][:] = 2
    assert record.changed() == "a"


def test_no_text_is_an_error_of_mxnet() -> None:
    assert told(b"text") == "text"
    with pytest.raises(FailedError):
        told(None)
