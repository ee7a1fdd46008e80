"""Measured seconds of operators on one device, kept on disk between runs.

The file is data (`echo.system.files`): JSON with a digest, checked field by field, replaced atomically, merged when
several processes write. A damaged or foreign file is ignored and written anew; a folder that cannot be written to
leaves the table in memory.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict

from echo.system.files import cache_folder, ignore, locked, read, replace, say_not_kept
from echo.system.reading import digest_of

# A table grows by about 150 bytes a distinct operator; the seven models of the benchmarks make 0.2 MB together.
_FORMAT = "echo-cost-table-6"
_MAX_SECONDS = 3600.0


class CostTable:
    """Seconds by signature for one device. A signature that could not be measured is kept as None.

    ``device`` is any text that names hardware and settings (`echo.frontend.device.device_key`); each has its own file.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.device = device
        self.path = (folder or cache_folder()) / f"costs-{digest_of(_FORMAT, device.encode())[:16]}.json"
        self._seconds, self._points = _read(self.path, device)
        self._added: _Seconds = {}
        self._added_points: _Points = {}

    def __contains__(self, signature: object) -> bool:
        return signature in self._seconds

    def __len__(self) -> int:
        return len(self._seconds)

    def __repr__(self) -> str:
        return f"CostTable({self.device!r}, {len(self)} signatures, {str(self.path)!r})"

    def get(self, signature: str) -> float | None:
        """The measured seconds, or None where it was not measured or cannot be."""
        return self._seconds.get(signature)

    def add(self, signature: str, seconds: float | None) -> None:
        """Keeps a measurement (None: it cannot be measured) until `save`.

        Raises:
            ValueError: the seconds are not a positive finite number.
        """
        if not _is_seconds(seconds):
            raise ValueError(f"expected a positive finite number of seconds or None, got {seconds!r}")
        self._seconds[signature] = self._added[signature] = seconds

    def points(self, family: str) -> list[tuple[float, float]]:
        """The measurements of a family of operators that differ in their sizes alone: (size, seconds), by size."""
        return sorted((float(size), seconds) for size, seconds in self._points.get(family, {}).items())

    def add_point(self, family: str, size: float, seconds: float) -> None:
        """Keeps a measured member of a family until `save`.

        Raises:
            ValueError: the size or the seconds are not positive finite numbers.
        """
        if seconds is None or not _is_seconds(seconds) or not _is_size(repr(float(size))):
            raise ValueError(f"expected a positive size and seconds, got {size!r} and {seconds!r}")
        for points in (self._points, self._added_points):
            points.setdefault(family, {})[repr(float(size))] = seconds

    def save(self) -> bool:
        """Writes what was added, merged with what other processes wrote. False where nothing could be written."""
        if not self._added and not self._added_points:
            return True
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path):
                seconds, points = _read(self.path, self.device)
                seconds.update(self._added)
                for family, added in self._added_points.items():
                    points.setdefault(family, {}).update(added)
                value = {"device": self.device, "seconds": seconds, "points": points}
                replace(self.path, _purpose(self.device), value)
        except OSError as error:
            say_not_kept(error)  # read-only or full: the table works on in memory
            return False
        self._seconds = {**seconds, **self._seconds}
        self._points = points
        self._added, self._added_points = {}, {}
        return True


_Seconds = Dict[str, "float | None"]
_Points = Dict[str, Dict[str, float]]  # family -> size, as JSON writes a number that is a key -> seconds


def _purpose(device: str) -> str:
    return f"{_FORMAT} {device}"


def _read(path: Path, device: str) -> tuple[_Seconds, _Points]:
    """The seconds and points in the file; empty where it is missing, damaged or another device's."""
    value = read(path, _purpose(device))
    if value is None:
        return {}, {}
    seconds, points = value.get("seconds"), value.get("points")
    timed = isinstance(seconds, dict) and all(map(_is_seconds, seconds.values()))
    if not timed or not isinstance(points, dict) or not all(map(_is_family, points.values())):
        ignore(path, "it has fields of other types")
        return {}, {}
    return seconds, points  # type: ignore[return-value]  # checked just now


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
