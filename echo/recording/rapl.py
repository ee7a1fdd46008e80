"""The energy of the processors' packages, by RAPL as Linux shows it."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's processors, too; parts of packages have another number behind it
_ALLOW = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"


class Rapl:
    """Counts joules of all packages from here on.

    Raises:
        LookupError: there is no such counter, or it may not be read; the message says what would allow it.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        try:
            zones = [path for path in sorted(folder.iterdir()) if _PACKAGE.fullmatch(path.name)]
            packages = [path for path in zones if (path / "name").read_text(encoding="ascii").startswith("package")]
            self._zones = [(path / "energy_uj", _number(path / "max_energy_range_uj")) for path in packages]
            self._last = [_number(path) for path, _ in self._zones]
        except PermissionError as error:
            raise LookupError(f"CPU energy: this user may not read it; to allow it: {_ALLOW}") from error
        except (OSError, ValueError) as error:
            raise LookupError(f"CPU energy: the processor's counters (RAPL) are not there: {error}") from error
        if not packages:
            raise LookupError(f"CPU energy: the processor's counters (RAPL) are not there: nothing in {folder}")
        self._microjoules = 0

    def joules(self) -> float | None:
        """Joules since it was made; None where the counters went away."""
        try:
            for number, (path, most) in enumerate(self._zones):
                now = _number(path)
                self._microjoules += (now - self._last[number]) % (most + 1)  # it begins anew at its end
                self._last[number] = now
        except (OSError, ValueError):
            return None
        return self._microjoules / 1e6


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
