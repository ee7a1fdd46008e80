"""A recording of a program that knows nothing of it: ``ECHO_RECORD``, which `mxecho record` sets.

A step ends where the weights are updated: ``Module.update``, which ``fit``, BucketingModule and Sockeye 1 call, and
``Trainer.step`` or ``Trainer.update`` of Gluon. Each is wrapped once mxnet is imported; the user's files stay as they
are. Of a program that updates two networks in turn, each update counts as a step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any, Callable, Mapping

import mxnet as mx

from echo.instrument.recorder import Recorder, StorageCounter
from echo.instrument.windows import RowFile
from echo.plans.variables import RECORD_VARIABLE, value_of

_EVERY, _WARMUP = f"{RECORD_VARIABLE}_EVERY", f"{RECORD_VARIABLE}_WARMUP"


def record_from_environment() -> None:
    """Has the steps of this process recorded, as the variables say. Never raises.

    The file is made by the process that takes the first step: others, which start it or load its data, make none.
    """
    recording = _Recording(os.environ)
    _wrap(mx.mod.Module, "update", recording, lambda module: module._exec_group.batch_size)
    for name in ("step", "update"):
        _wrap(mx.gluon.Trainer, name, recording, lambda _, batch_size, ignore_stale_grad=False: batch_size)


class _Recording:
    """A recorder that is made at the first step; where it cannot be, one line says why and the training goes on."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._recorder: Recorder | None = None
        self._failed = False
        self._storage: StorageCounter | None = None
        with contextlib.suppress(LookupError):  # the recorder tries again, and says so
            self._storage = StorageCounter()

    def step(self, samples: Callable[[], int]) -> None:
        """A step ends here; ``samples`` says of how many samples, and whatever goes wrong there ends the recording."""
        if self._failed:
            return
        try:
            if self._recorder is None:
                self._recorder = self._begin()
            self._recorder.step(int(samples()))
        except mx.MXNetError:
            raise  # of the user's operators, for which the recorder waited
        except Exception as error:
            self._failed = True
            print(f"echo: nothing more is recorded: {error}", file=sys.stderr)

    def _begin(self) -> Recorder:
        numbers = {
            name: value_of(variable, self._environment)
            for name, variable in (("every", _EVERY), ("warmup", _WARMUP))
            if variable in self._environment
        }
        return Recorder(RowFile(self._environment[RECORD_VARIABLE]), storage=self._storage, **numbers)


def _wrap(kind: Any, name: str, recording: _Recording, samples: Callable[..., int]) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        recording.step(lambda: samples(self, *args, **kwargs))
        return result

    setattr(kind, name, wrapper)
