"""Everything that a recording measures, as far as it can be measured here."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import mxnet as mx

from echo.recording.energy import Gpus, Rapl
from echo.recording.windows import Reading
from echo.runtime.foresight import FORESIGHT
from echo.runtime.storage_counter import StorageCounter
from echo.system.cuda import bus_ids
from echo.system.process import reset_peak, resident

_Meter = TypeVar("_Meter")


class Meters:
    """Measures while it is open, ``storage`` perhaps since an earlier moment.

    ``missing`` says, a line for each, what cannot be measured here and why.
    """

    def __init__(self, storage: StorageCounter | None = None) -> None:
        self.missing: list[str] = []
        self._gpus = self._try(_gpus) if mx.runtime.Features().is_enabled("CUDA") else None
        self._storage = storage or self._try(StorageCounter)
        self._cpus = self._try(Rapl)
        if self._gpus is not None and self._gpus.why_no_energy:
            self.missing.append(self._gpus.why_no_energy)

    def _try(self, make: Callable[[], _Meter]) -> _Meter | None:
        try:
            return make()
        except LookupError as error:
            self.missing.append(str(error))
            return None

    def read(self) -> Reading:
        """Reads all meters now: bytes of process, MXNet's storage and GPUs, joules of GPUs and CPUs.

        Of the process and of the storage they are the most since the last reading.
        """
        return Reading(
            _peak(),
            None if self._storage is None else self._storage.most(),
            None if self._gpus is None else self._gpus.bytes(),
            None if self._gpus is None else self._gpus.joules(),
            None if self._cpus is None else self._cpus.joules(),
        )

    def close(self) -> None:
        """Ends all that runs beside the training."""
        if self._storage is not None:
            self._storage.close()
        if self._gpus is not None:
            self._gpus.close()


def _peak() -> int:
    """The most bytes that this process held since the last call; since it began, if the mark cannot be reset."""
    most = resident("VmHWM")
    FORESIGHT.see(most)
    reset_peak()
    return most


def _gpus() -> Gpus | None:
    """The GPUs that this process may use; None where there is none."""
    ids = bus_ids()
    if not ids:
        return None
    try:
        import pynvml
    except ImportError as error:
        raise LookupError(f"GPU memory and energy: {error}; pip install nvidia-ml-py") from error
    library: Any = pynvml
    return Gpus(library, ids)
