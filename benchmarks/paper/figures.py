"""Figures from planned bytes: by how often memory falls, means, and whether the expectations hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

Row = Mapping[str, Any]

#: The four over which the authors' abstract takes its mean.
HEADLINE = ("nmt_tbd", "deepspeech2", "transformer", "resnet50_v2")
#: The goals of echo for the mean and the largest of the four, by way; None: nothing.
BARS: Mapping[str, tuple[float | None, float | None]] = {
    "default": (3.6, 7.5), "same_time": (4.0, None), "bits": (2.9, None)
}  # fmt: skip
_BYTES = ("planned", "total")
_WORSE = 1.01  # of the committed bytes
#: The same where a bound on time decides: seconds are measured in each run, and choices close to the bound follow them.
_BOUNDED, _WORSE_WITHIN_BOUND = ("default", "light", "same_time", "unfused", "bits"), 1.05
#: The fastest plans that fit: another number of bytes within the budget is none the worse.
_BUDGETS = ("budget_", "at_memonger")


def net(row: Row, name: str) -> int:
    """The bytes of one way without weights, gradients and inputs, which are the same in all."""
    given = row["stock"]["total"] - row["stock"]["planned"]
    return int(row[name]["total"] - given)


def times(row: Row, name: str, of: str = "total") -> float:
    """By how often memory falls: in "total", or "net" of weights, gradients and inputs."""
    if of == "net":
        return net(row, "stock") / net(row, name)
    return float(row["stock"]["total"] / row[name]["total"])


def headline(rows: Iterable[Row], name: str, of: str = "total") -> tuple[float, float]:
    """The mean and the largest of `times` over the four workloads of the abstract."""
    found = [times(row, name, of) for row in rows if row["workload"] in HEADLINE]
    if len(found) != len(HEADLINE):
        raise ValueError(f"expected results of {', '.join(HEADLINE)}, got {len(found)} of them")
    return mean(found), max(found)


def faults(row: Row) -> list[str]:
    """Broken expectations of a workload: never above stock, below the mirror, no more heavy operators than memonger."""
    found = []
    for name in ("default", "unfused"):
        if row[name]["total"] > row["stock"]["total"]:
            found.append(f"{row['workload']}, {name}: more than stock")
        if row[name]["total"] >= row["mirror"]["total"]:
            found.append(f"{row['workload']}, {name}: not below the mirror")
    compared = row["at_memonger"]
    if "reachable" in compared:
        found.append(f"{row['workload']}: does not reach memonger's memory")
    elif compared["heavy"] > row["memonger"]["heavy"]:
        found.append(f"{row['workload']}: more heavy operators than memonger")
    return found


def regressions(found: Sequence[Row], committed: Sequence[Row]) -> list[str]:
    """Every figure that takes more than 1 % more bytes than the committed one, 5 % within a bound on time; a line each.

    Within a budget a figure is only worse where nothing fits any more. Rows are the same where their texts and numbers
    are. Figures on one side only are not compared.
    """
    known = {_key(row): row for row in committed}
    lines = []
    for row in found:
        for name, value in known.get(_key(row), {}).items():
            if isinstance(value, dict) and isinstance(row.get(name), dict):
                lines += [f"{' '.join(map(str, _key(row)))}, {name}: {text}" for text in _worse(name, row[name], value)]
    return lines


def compared(found: Sequence[Row], committed: Sequence[Row]) -> int:
    """How many figures `regressions` compares."""
    known = {_key(row): row for row in committed}
    pairs = [(value, known.get(_key(row), {}).get(name)) for row in found for name, value in row.items()]
    return sum(isinstance(ours, dict) and isinstance(theirs, dict) for ours, theirs in pairs)


def _worse(name: str, found: Row, committed: Row) -> list[str]:
    if "reachable" in found and "reachable" not in committed:
        return ["out of reach, which it was not"]
    if name.startswith(_BUDGETS):
        return []
    limit = _WORSE_WITHIN_BOUND if name in _BOUNDED else _WORSE
    return [
        f"{found[figure] / 1e6:.1f} MB {figure}, where {committed[figure] / 1e6:.1f} are committed"
        for figure in _BYTES
        if figure in found and figure in committed and found[figure] > limit * committed[figure]
    ]


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(value for value in row.values() if isinstance(value, (str, int)))
