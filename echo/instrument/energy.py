"""Energy: of GPUs by NVML, of processors by RAPL."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any, Sequence

# Memory and energy of GPUs, by NVIDIA's management library (NVML).

_INTERVAL = 0.1  # seconds between two looks at the power


class Gpus:
    """Some GPUs of this machine, by their bus ids: NVML counts in another order than CUDA.

    Where a GPU has no counter of energy (before Volta), its power is looked at ten times a second by a thread.

    Args:
        library: the module ``pynvml``.
        bus_ids: as CUDA names the devices, "0000:65:00.0".

    Raises:
        LookupError: NVML does not answer; the message says why.
    """

    def __init__(self, library: Any, bus_ids: Sequence[str]) -> None:
        self._nvml = library
        try:
            library.nvmlInit()
            self._handles = [library.nvmlDeviceGetHandleByPciBusId(bus_id.encode()) for bus_id in bus_ids]
            for handle in self._handles:
                library.nvmlDeviceGetMemoryInfo(handle)
        except library.NVMLError as error:
            raise LookupError(f"GPU memory and energy: NVML does not answer: {error}") from error
        self.why_no_energy = ""
        self._polled: Polled | None = None
        self._counts = self._has_counters()
        if not self._counts:
            self._poll()

    def _has_counters(self) -> bool:
        try:
            for handle in self._handles:
                self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except self._nvml.NVMLError:
            return False
        return True

    def _poll(self) -> None:
        try:
            self._watts()
        except self._nvml.NVMLError as error:
            self.why_no_energy = f"GPU energy: NVML says neither energy nor power: {error}"
        else:
            self._polled = Polled(self._watts)

    def _watts(self) -> float:
        return float(sum(self._nvml.nvmlDeviceGetPowerUsage(handle) for handle in self._handles)) / 1e3

    def bytes(self) -> int | None:
        """Bytes that are used on the GPUs, by all processes; None where NVML does not answer any more."""
        try:
            return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in self._handles)
        except self._nvml.NVMLError:
            return None

    def joules(self) -> float | None:
        """Returns joules since an unspecified start, of which differences count; None where they are not known."""
        if self._polled is not None:
            return self._polled.joules()
        if not self._counts:
            return None
        try:
            millijoules = [self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles]
        except self._nvml.NVMLError:
            return None
        return float(sum(millijoules)) / 1e3

    def close(self) -> None:
        """Ends the thread, and what NVML keeps for this process."""
        if self._polled is not None:
            self._polled.close()
        self._nvml.nvmlShutdown()


class Polled:
    """The energy after a power that is looked at again and again, by a thread of its own.

    Args:
        watts: the power now; an exception ends the sampling, and the energy is unknown from then on.
        interval: seconds between two looks.
    """

    def __init__(self, watts: Any, interval: float = _INTERVAL) -> None:
        self._watts, self._interval = watts, interval
        self._lock, self._done = threading.Lock(), threading.Event()
        self._joules: float | None = 0.0
        self._at, self._power = time.monotonic(), float(watts())
        self._thread = threading.Thread(target=self._look, name="echo-power", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(self._interval) and self.joules() is not None:
            pass

    def joules(self) -> float | None:
        """Joules since it was made, with the mean of each two powers between them."""
        with self._lock:
            if self._joules is None:
                return None
            try:
                power = float(self._watts())
            except Exception:  # whatever the library has for it
                self._joules = None
                return None
            now = time.monotonic()
            self._joules += (now - self._at) * (power + self._power) / 2
            self._at, self._power = now, power
            return self._joules

    def close(self) -> None:
        """Ends the thread."""
        self._done.set()
        self._thread.join()


# The energy of the processors' packages, by RAPL as Linux shows it.

FOLDER = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's processors, too; parts of packages have another number after it
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
            why = getattr(error, "strerror", None) or error
            raise LookupError(f"CPU energy: the processor's counters (RAPL) are not there: {why}") from error
        if not packages:
            raise LookupError(f"CPU energy: the processor's counters (RAPL) are not there: nothing in {folder}")
        self._microjoules = 0

    def joules(self) -> float | None:
        """Joules since it was made; None where the counters went away."""
        try:
            for number, (path, most) in enumerate(self._zones):
                now = _number(path)
                self._microjoules += (now - self._last[number]) % (most + 1)  # it begins again at its end
                self._last[number] = now
        except (OSError, ValueError):
            return None
        return self._microjoules / 1e6


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
