"""The processor has a text of its own, and a number of cores."""

from __future__ import annotations

import os

from echo.system.processor import cores, processor


def test_the_processor_is_named() -> None:
    assert len(processor().split()) >= 5
    assert processor() == processor()


def test_the_cores_of_this_process_are_counted() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
