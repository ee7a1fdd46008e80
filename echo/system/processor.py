"""Which processor this is, as far as measured seconds depend on it."""

from __future__ import annotations

import contextlib
import functools
import os


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.lru_cache(maxsize=None)
def processor() -> str:
    """Model, family and stepping: on virtual machines the name alone says little."""
    keys = ("model name", "cpu family", "model", "stepping", "cache size")
    values: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in keys:
                values.setdefault(key.strip(), value.strip())
            if len(values) == len(keys):
                break
    return " ".join(values.get(key, "?") for key in keys)
