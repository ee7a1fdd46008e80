"""Measured seconds of operators on one device, and what they tell about others: rates, and which times can be true."""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterable, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from echo.estimators.operator_groups import OperatorGroup
from echo.meter.timer import LAUNCH
from echo.system.files import cache_folder, digest_of, ignore, locked, read, replace, say_not_kept

# The table is kept on disk between runs.
#
# A process reads the file once, and again when another process has replaced it.
#
# The file is data (`echo.system.files`): JSON with a digest, checked field by field, replaced atomically, merged when
# several processes write. A damaged or foreign file is ignored and written again; a folder that cannot be written to
# leaves the table in memory.

# A table grows by about 150 bytes a distinct operator; the seven models of the benchmarks make 0.2 MB together.
_FORMAT = "echo-cost-table-8"
_MAX_SECONDS = 3600.0


class CostTable:
    """Seconds by signature for one device. A signature that could not be measured is kept as None.

    ``device`` is any text that names hardware and settings (`echo.frontend.plan_key.device_key`); each has its own
    file. Provisional signatures are those of which a later start should measure better: on a busy machine their seconds
    were too long, or not to be believed (None).
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.device = device
        self.path = (folder or cache_folder()) / f"costs-{digest_of(_FORMAT, device.encode())[:16]}.json"
        self._kept = _read(self.path, device)
        self._added: _Seconds = {}
        self._added_points: _Points = {}
        self._provisional: set[str] = set()  # of what was added

    def __contains__(self, signature: object) -> bool:
        return signature in self._added or signature in self._kept.seconds

    def __len__(self) -> int:
        return len(self._added.keys() | self._kept.seconds.keys())

    def __repr__(self) -> str:
        return f"CostTable({self.device!r}, {len(self)} signatures, {str(self.path)!r})"

    def get(self, signature: str) -> float | None:
        """The measured seconds, or None where it was not measured or cannot be."""
        if signature in self._added:
            return self._added[signature]
        return self._kept.seconds.get(signature)

    def is_provisional(self, signature: str) -> bool:
        """Whether the seconds should be measured again."""
        return signature in (self._provisional if signature in self._added else self._kept.provisional)

    def add(self, signature: str, seconds: float | None, provisional: bool = False) -> None:
        """Keeps a measurement (None: it cannot be measured) until `save`.

        Raises:
            ValueError: the seconds are not a positive finite number.
        """
        if not _is_seconds(seconds):
            raise ValueError(f"expected a positive finite number of seconds or None, got {seconds!r}")
        self._added[signature] = seconds
        (self._provisional.add if provisional else self._provisional.discard)(signature)

    def points(self, family: str) -> list[tuple[float, float]]:
        """The measurements of a family of operators that differ in their sizes alone: (size, seconds), by size."""
        points = {**self._kept.points.get(family, {}), **self._added_points.get(family, {})}
        return sorted((float(size), seconds) for size, seconds in points.items())

    def add_point(self, family: str, size: float, seconds: float) -> None:
        """Keeps a measured member of a family until `save`.

        Raises:
            ValueError: the size or the seconds are not positive finite numbers.
        """
        if seconds is None or not _is_seconds(seconds) or not _is_size(repr(float(size))):
            raise ValueError(f"expected a positive size and seconds, got {size!r} and {seconds!r}")
        self._added_points.setdefault(family, {})[repr(float(size))] = seconds

    def save(self) -> bool:
        """Writes what was added, merged with what other processes wrote. False where nothing could be written.

        What is provisional here does not replace what another process measured well.
        """
        if not self._added and not self._added_points:
            return True
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path):
                merged = self._merged(_read(self.path, self.device))
                replace(self.path, _purpose(self.device), {"device": self.device, **merged.to_json()})
        except OSError as error:
            say_not_kept(error)  # read-only or full: the table works on in memory
            return False
        self._kept = merged
        self._added, self._added_points, self._provisional = {}, {}, set()
        return True

    def _merged(self, kept: _Contents) -> _Contents:
        settled = kept.seconds.keys() - kept.provisional
        added = {key: seconds for key, seconds in self._added.items() if key not in self._provisional & settled}
        points = {family: dict(pairs) for family, pairs in kept.points.items()}
        for family, pairs in self._added_points.items():
            points.setdefault(family, {}).update(pairs)
        provisional = (kept.provisional - added.keys()) | (self._provisional & added.keys())
        return _Contents({**kept.seconds, **added}, points, frozenset(provisional))


_Seconds = Dict[str, "float | None"]
_Points = Dict[str, Dict[str, float]]  # family -> size, as JSON writes a number that is a key -> seconds


class _Contents(NamedTuple):
    """The contents of a file, which tables share and never change."""

    seconds: _Seconds
    points: _Points
    provisional: frozenset[str]

    def to_json(self) -> dict[str, object]:
        return {"seconds": self.seconds, "points": self.points, "provisional": sorted(self.provisional)}


_NOTHING = _Contents({}, {}, frozenset())
_FileState = Tuple[int, ...]
_MOST_FILES = 8
# What was read, with the state of the file at that time: reading and checking takes some 10 ms for each new graph.
_READ: dict[tuple[Path, str], tuple[_FileState, _Contents]] = {}


def _purpose(device: str) -> str:
    return f"{_FORMAT} {device}"


def _state(path: Path) -> _FileState:
    """Identifies the contents of a file, which is replaced but never written to; () where it is not there."""
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(path: Path, device: str) -> _Contents:
    """The contents of the file, remembered while it stays the same."""
    state = _state(path)
    if not state:
        return _NOTHING
    known = _READ.get((path, device))
    if known is not None and known[0] == state:
        return known[1]
    kept = _checked(path, device)
    if kept is not _NOTHING:
        if len(_READ) >= _MOST_FILES:
            _READ.clear()
        _READ[path, device] = state, kept
    return kept


def _checked(path: Path, device: str) -> _Contents:
    """The contents of the file; nothing where it is missing, damaged or another device's."""
    value = read(path, _purpose(device))
    if value is None:
        return _NOTHING
    seconds, points, provisional = value.get("seconds"), value.get("points"), value.get("provisional")
    timed = isinstance(seconds, dict) and all(map(_is_seconds, seconds.values()))
    named = isinstance(provisional, list) and all(isinstance(name, str) for name in provisional)
    if not timed or not named or not isinstance(points, dict) or not all(map(_is_family, points.values())):
        ignore(path, "it has fields of other types")
        return _NOTHING
    return _Contents(seconds, points, frozenset(provisional))  # type: ignore[arg-type]  # checked just now


def _is_family(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return all(_is_size(size) and seconds is not None and _is_seconds(seconds) for size, seconds in value.items())


def _is_size(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _is_seconds(value: object) -> bool:
    if value is None:
        return True
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < _MAX_SECONDS  # type: ignore[operator]  # a whole number may be too large for a float


# Seconds from work: what operators take that were not measured, and whether a measured time can be true.
#
# What is not measured follows the roofline: a fixed launch time plus work divided by a rate, with the rates taken from
# measured operators, of the same family where there are any.

# Where nothing was measured: medians over the operators of NMT, LM and ResNet-50 steps, MXNet 1.9.1's profiler on two
# cores of a Xeon Scalable (4th generation). On another device only their ratios matter, until something is measured.
BYTES_PER_SECOND = 8e9
FLOPS_PER_SECOND = 8e10

# A measured time is believed at once between these multiples of the roofline's: of what it would be by the usual rate
# of other operators, and by a rate that few of them reach. What lies outside has to take as long twice.
_MOST, _LEAST = 20.0, 0.5
_FEW = 0.9  # quantile of the rates
_ENOUGH = 4  # rates of others that say what is usual on this device; with fewer, the constants do
_UNSURE = 16.0  # times by which the constants are off on other devices: from one slow core to a large server


@dataclass(frozen=True)
class Rates:
    """Seconds from work: measured points of each family, and rates over all families."""

    points: Mapping[tuple[object, ...], Sequence[tuple[float, float]]] = field(default_factory=dict)
    bytes_per_second: float = BYTES_PER_SECOND
    flops_per_second: float = FLOPS_PER_SECOND

    @staticmethod
    def of(measured: Sequence[tuple[OperatorGroup, float | None]], table: CostTable) -> Rates:
        """Rates from the measurements, also those of families in other graphs; constants where there are none."""
        points = {group.family: dict(table.points(repr(group.family))) for group, _ in measured}
        computing_families = {group.family for group, _ in measured if group.work.flops}
        for group, seconds in measured:
            if seconds is not None:
                points[group.family][group.size] = seconds
        moving: list[float] = []
        computing: list[float] = []
        for family, pairs in points.items():
            rates = computing if family in computing_families else moving
            rates.extend(size / seconds for size, seconds in pairs.items())
        return Rates(
            {family: sorted(pairs.items()) for family, pairs in points.items()},
            statistics.median(moving) if moving else BYTES_PER_SECOND,
            statistics.median(computing) if computing else FLOPS_PER_SECOND,
        )

    def step(self, groups: Sequence[OperatorGroup]) -> float:
        """Seconds of a step of these groups."""
        return sum(group.count * self.estimate(group) for group in groups)

    def estimate(self, group: OperatorGroup) -> float:
        """Seconds of one run: between measured members of the family, else the roofline."""
        points = self.points.get(group.family)
        if points:
            return _interpolate(points, group.size)
        return LAUNCH + max(group.work.flops / self.flops_per_second, group.work.bytes / self.bytes_per_second)


def _interpolate(points: Sequence[tuple[float, float]], size: float) -> float:
    """Seconds at ``size``: a power law between two points, launch plus a constant rate outside of them."""
    below = [point for point in points if point[0] <= size]
    above = [point for point in points if point[0] > size]
    if below and above:
        (left, low), (right, high) = below[-1], above[0]
        return float(low * (high / low) ** (math.log(size / left) / math.log(right / left)))
    nearest, seconds = (below or above)[-1 if below else 0]
    launch = min(LAUNCH, seconds)
    return launch + (seconds - launch) * size / nearest


class Roofline:
    """The times that operators can take by the rates of all others that were measured with them."""

    def __init__(self, measured: Iterable[tuple[OperatorGroup, float]]) -> None:
        self._rates: dict[bool, dict[str, float]] = {
            False: {},
            True: {},
        }  # by whether a group computes, then by its key
        for group, seconds in measured:
            self._rates[bool(group.work.flops)][group.key] = group.size / seconds

    def allows(self, group: OperatorGroup, seconds: float) -> bool:
        """Whether a group may take so many seconds; otherwise they are worth another look."""
        flops, _ = self._usual_and_most(True, group.key, FLOPS_PER_SECOND)
        moved, _ = self._usual_and_most(False, group.key, BYTES_PER_SECOND)
        usual = LAUNCH + max(group.work.flops / flops, group.work.bytes / moved)
        return self.least(group) <= seconds <= _MOST * usual

    def least(self, group: OperatorGroup) -> float:
        """The fewest seconds that are allowed."""
        if group.work.flops:
            return _LEAST * group.work.flops / self._usual_and_most(True, group.key, FLOPS_PER_SECOND)[1]
        return _LEAST * group.work.bytes / self._usual_and_most(False, group.key, BYTES_PER_SECOND)[1]

    def _usual_and_most(self, computes: bool, key: str, constant: float) -> tuple[float, float]:
        others = [rate for name, rate in self._rates[computes].items() if name != key]
        if len(others) < _ENOUGH:
            return constant / _UNSURE, constant * _UNSURE
        return statistics.median(others), float(np.quantile(others, _FEW))
