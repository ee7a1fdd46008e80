"""Counts the bytes of MXNet's storage that are alive, of all arrays allocated since the count began."""

from __future__ import annotations

import ctypes

from echo import native
from echo.errors import EchoError
from echo.native.loading import function
from echo.runtime import held

_IN_HOST_MEMORY, _ON_GPUS = 0, 1  # as the hook's library has them


class StorageCounter:
    """Counts while it is open. There can be one in a process.

    Raises:
        LookupError: this MXNet's storage cannot be counted, or is being counted; the message says why.
    """

    def __init__(self) -> None:
        why = held.why_not()
        if why:
            raise LookupError(f"MXNet's storage: {why}")
        try:
            library = native.hook_library()
            watch = function(library, "echo_storage_watch", ctypes.c_int)
            self._most = function(library, "echo_storage_most", ctypes.c_int64, ctypes.c_int)
            self._unwatch = function(library, "echo_storage_unwatch", None)
        except EchoError as error:
            raise LookupError(f"MXNet's storage: {error}") from error
        if watch():
            raise LookupError("MXNet's storage: somebody else counts it")

    def most(self) -> int:
        """The most bytes of arrays alive at once since the last call: on GPUs; where none is, in host memory."""
        return int(self._most(_ON_GPUS)) or int(self._most(_IN_HOST_MEMORY))

    def close(self) -> None:
        """Stops counting."""
        self._unwatch()
