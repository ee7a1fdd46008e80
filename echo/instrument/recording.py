"""Records training: steps, seconds, memory and energy, by a `Recorder` or, under ``ECHO_RECORD``, in any program."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import os
import platform
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Mapping, TypeVar

import mxnet as mx
from mxnet.gluon.contrib.estimator import BatchEnd, EpochBegin, EpochEnd, TrainBegin, TrainEnd

from echo import native
from echo.errors import EchoError, OptionError, reraise_interruption
from echo.instrument.energy import Gpus, Rapl
from echo.instrument.windows import FORMAT, Reading, Row, RowFile, Windows, columns_of, summary
from echo.native import function
from echo.plans.variables import RECORD_VARIABLE, value_of
from echo.runtime.peak_prediction import PEAK_PREDICTION
from echo.system.cuda import bus_ids
from echo.system.process import reset_peak, resident
from echo.system.terminal import complain
from echo.system.threads import ONCE
from echo.verify import storage

# Counts the bytes of MXNet's storage that are alive, of all arrays allocated since the count began.

_IN_HOST_MEMORY, _ON_GPUS = 0, 1  # as the hook's library has them


class StorageCounter:
    """Counts while it is open. There can be one in a process.

    Raises:
        LookupError: this MXNet's storage cannot be counted, or is being counted; the message says why.
    """

    def __init__(self) -> None:
        why = storage.counting_blocker()
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
            raise LookupError("MXNet's storage: another counter is active")

    def most(self) -> int:
        """The most bytes of arrays alive at once since the last call: on GPUs; where none is, in host memory."""
        return int(self._most(_ON_GPUS)) or int(self._most(_IN_HOST_MEMORY))

    def close(self) -> None:
        """Stops counting."""
        self._unwatch()


# Everything that a recording measures, as far as it can be measured here.

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
        """Ends all that runs alongside the training."""
        if self._storage is not None:
            self._storage.close()
        if self._gpus is not None:
            self._gpus.close()


def _peak() -> int:
    """The most bytes that this process held since the last call; since it began, if the mark cannot be reset."""
    most = resident("VmHWM")
    PEAK_PREDICTION.see(most)
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


# `echo.callbacks.Recorder` records the time, memory and energy of a training as it runs.

logger = logging.getLogger("echo")


class Recorder(TrainBegin, EpochBegin, BatchEnd, EpochEnd, TrainEnd):  # type: ignore[misc]
    """Records samples a second, milliseconds a step, memory and energy of a training, window by window.

    ::

        module.fit(data, batch_end_callback=Recorder("run.csv"))          # Module

        with Recorder("run.csv") as recorder:                             # a loop of one's own
            for batch in batches:
                ...
                trainer.step(batch_size)
                recorder.step(batch_size)

        estimator.fit(data, epochs=3, event_handlers=[Recorder("run.csv")])

    At the end of each window MXNet is waited for, so that its time and its energy are those of its steps. Rows are
    written as they come: a training that is interrupted keeps them. At its end, `close` writes sums alongside them, as
    ``run.json``.

    Args:
        path: a CSV file for the rows, replaced where it is there, or one that is open; none are written without one.
        every: steps of a window.
        warmup: steps from the first one on that are recorded and left out of sums.
        storage: a counter of MXNet's storage that was opened earlier, so that it also counts earlier arrays; otherwise
            arrays that were allocated before the recorder is made are not counted.

    Raises:
        OptionError: a number that makes no sense.
        OSError: the file cannot be written.
    """

    priority = -1500  # of the Estimator's handlers: after the update of the weights, before an evaluation

    def __init__(
        self,
        path: str | os.PathLike[str] | RowFile | None = None,
        every: int = 10,
        warmup: int = 10,
        storage: StorageCounter | None = None,
    ) -> None:
        for name, value, least in (("every", every, 1), ("warmup", warmup, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}: expected a number of steps from {least} on, got {value!r}")
        self.rows: list[Row] = []
        self.every, self.warmup = every, warmup
        self._file = path if path is None or isinstance(path, RowFile) else RowFile(path, replace=True)
        self._meters = Meters(storage)
        for line in filter(ONCE.first, self._meters.missing):
            logger.warning("echo: not recorded: %s", line)
        self._windows = Windows(self._meters.read, mx.nd.waitall, every, warmup)
        self._process = os.getpid()
        self._open = True
        atexit.register(self.close)

    @property
    def path(self) -> Path | None:
        """The file of the rows."""
        return None if self._file is None else self._file.path

    @property
    def missing(self) -> tuple[str, ...]:
        """The quantities that this machine cannot measure, each with the reason, a line each."""
        return tuple(self._meters.missing)

    def step(self, batch_size: int) -> None:
        """A training step with so many samples ends here."""
        if self._open:
            self._add(self._windows.step(batch_size))

    def restart(self) -> None:
        """Begins a window here: work since the last step, an evaluation perhaps, is in no window."""
        if self._open:
            self._windows.open()

    def pause(self) -> None:
        """Ends the window here; the next one begins with `restart`, or at the end of the next step."""
        if self._open:
            self._add(self._windows.close())

    def summary(self) -> dict[str, Any]:
        """The summary of the rows so far (`echo.instrument.windows`)."""
        return summary(self.rows)

    def to_json(self) -> dict[str, Any]:
        """The recording as a JSON value: the sums, the rows as columns, and versions."""
        return {
            "format": FORMAT,
            "every": self.every,
            "warmup": self.warmup,
            "versions": {"echo": version("mxnet-echo"), "mxnet": mx.__version__, "python": platform.python_version()},
            "missing": list(self.missing),
            "predicted": PEAK_PREDICTION.found and PEAK_PREDICTION.found.to_json(),  # bytes of the process, by part
            "predicted_time": PEAK_PREDICTION.found
            and PEAK_PREDICTION.found.time,  # of a step, a multiple of one without echo
            "predicted_recomputation": PEAK_PREDICTION.found and PEAK_PREDICTION.found.recomputation,  # a part of it
            "summary": self.summary(),
            "rows": columns_of(self.rows),
        }

    def close(self) -> None:
        """Ends the recording, and writes the sums alongside the file of the rows. The second time it does nothing."""
        if not self._open or os.getpid() != self._process:
            return
        self._add(self._windows.close())
        self._open = False
        atexit.unregister(self.close)
        self._meters.close()
        if self._file is not None:
            path, text = self._file.path.with_suffix(".json"), json.dumps(self.to_json(), allow_nan=False) + "\n"
            self._write(self._file.close)
            self._write(partial(path.write_text, text, encoding="utf-8"))

    def _add(self, row: Row | None) -> None:
        if row is None:
            return
        self.rows.append(row)
        if self._file is not None:
            self._write(partial(self._file.add, row))

    def _write(self, write: Callable[[], object]) -> None:
        """Writes; where that fails, as on a full disk, the training goes on, and nothing more is written."""
        try:
            write()
        except OSError as error:
            logger.warning("echo: nothing more is written of the recording: %s", error)
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def __enter__(self) -> Recorder:
        self.restart()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __call__(self, param: Any) -> None:
        """As ``batch_end_callback`` of ``Module.fit``. What runs between epochs is in no window."""
        self.step(_batch_size(param.locals))
        if param.locals.get("end_of_batch"):  # MXNet's name for the last batch of an epoch
            self.pause()

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing. Gluon's Estimator calls this and the four methods below of its event handlers."""

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.restart()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        self.step(sum(len(label) for label in kwargs["label"]))
        return False

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        self.pause()
        return False

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.close()


def _batch_size(names: Any) -> int:
    """The samples of the batch in the variables of ``Module.fit``.

    Raises:
        OptionError: these are other variables.
    """
    try:
        (first, *_), (shape, *_) = names["data_batch"].data, names["self"].data_shapes
        return int(first.shape[max(mx.io.DataDesc.get_batch_axis(shape.layout), 0)])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"Recorder: expected what Module.fit gives a batch_end_callback: {error}") from error


# A recording of a program that knows nothing of it: ``ECHO_RECORD``, which `mxecho record` sets.
#
# A step ends where the weights are updated: ``Module.update``, which ``fit``, BucketingModule and Sockeye 1 call, and
# ``Trainer.step`` or ``Trainer.update`` of Gluon. Each is wrapped once mxnet is imported; the user's files stay as they
# are. If a program updates two networks in turn, each update counts as a step.

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
            reraise_interruption(error)
            self._failed = True
            complain(f"echo: nothing more is recorded: {error}")

    def _begin(self) -> Recorder:
        numbers = {
            name: value_of(variable, self._environment)
            for name, variable in (("every", _EVERY), ("warmup", _WARMUP))
            if self._environment.get(variable)
        }
        return Recorder(RowFile(self._environment[RECORD_VARIABLE]), storage=self._storage, **numbers)


def _wrap(kind: Any, name: str, recording: _Recording, samples: Callable[..., int]) -> None:
    original = getattr(kind, name)

    @wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        recording.step(lambda: samples(self, *args, **kwargs))
        return result

    setattr(kind, name, wrapper)
