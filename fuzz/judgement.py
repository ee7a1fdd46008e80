"""Whether a difference is echo's, or one that MXNet's own results have."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from fuzz import training
from fuzz.outcome import Undefined


def verdict(wrong: Mapping[str, str], expected: Any, again: Iterable[Any], nudged: Iterable[Any]) -> str:
    """What is wrong, as text; ``again`` and ``nudged`` are runs without echo, of the same values and of nudged ones.

    Raises:
        Undefined: all that is wrong differs in one of those runs, too; a nudged one may differ as fused operators may.
    """
    doubtful: set[str] = set()
    for runs, fused in ((again, False), (nudged, True)):
        for run in runs:
            doubtful.update(training.differences(run, expected, fused, everywhere=True))
    if doubtful and set(wrong) <= doubtful:
        raise Undefined(", ".join(sorted(wrong)))
    return "; ".join(f"{name}: {how}" for name, how in list(wrong.items())[:4])
