"""The energy of a training step of an LSTM layer: echo's, cuDNN's, and torch's unfused one, by NVML's counter."""

from __future__ import annotations

from typing import Any, Callable, Iterator

from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_layers import layer_arrays, layer_step
from benchmarks.gpu_ours import Function, tensor_float
from benchmarks.gpu_sizes import Sizes
from benchmarks.gpu_torch import UnfusedLstm, cudnn_step, step_of
from echo.instrument.energy import Gpus

# Of each form: many times what NVML's counter takes to go on (some 0.1 s). Before that, power gets as high as it will.
SECONDS, WARM = 2.0, 0.3
_TOGETHER = 8  # steps that are enqueued before the device is waited for


def energy_rows(device: Any, sizes: Sizes, clock: Clock, seconds: float = SECONDS) -> Iterator[Row]:
    """A row for each form: joules and milliseconds of a step, and watts; or why there is none."""
    try:
        import pynvml

        gpus = Gpus(pynvml, [device.bus_id()])
    except (ImportError, LookupError) as error:
        yield {"section": "energy", "skipped": str(error)}
        return
    try:
        if gpus.why_no_energy:
            yield {"section": "energy", "skipped": gpus.why_no_energy}
            return
        for size in sizes.energy:
            row = {"section": "energy", "dtype": "float32", "H": size.hidden, "B": size.batch, "T": size.steps}
            arrays = layer_arrays(device, *size[:3], "float32")
            for name, make in clock.take(_forms(device, arrays).items(), lambda form: form[0]):
                yield {**row, "form": name, **_measured(device, gpus, make, seconds, clock.now)}
    finally:
        gpus.close()


def _forms(device: Any, arrays: tuple[list[Any], ...]) -> dict[str, Callable[[], Function]]:
    """The function that makes each form's step, all gradients included."""
    inputs, _, heads = arrays
    x, wi, bi, wh, bh, h0, c0 = inputs
    unfused = UnfusedLstm(device.torch, True)
    return {
        "ours": lambda: layer_step(device, *arrays),
        "cudnn": lambda: cudnn_step(device.torch, x, h0.shape[1], heads[:3]),
        "unfused": lambda: step_of(device.torch, unfused, [x, h0, c0, wi, bi, wh, bh], heads[:3]),
    }


def _measured(device: Any, gpus: Gpus, make: Callable[[], Function], seconds: float, now: Callable[[], float]) -> Row:
    """Of steps in full float32, as many as fit into these seconds."""
    with tensor_float(device, False):
        try:
            step = make()
            _repeat(device, step, min(WARM, seconds), now)
            before = gpus.joules()
            steps, took = _repeat(device, step, seconds, now)
            after = gpus.joules()
        except Exception as error:  # what others lack here says nothing of echo's
            return {"skipped": f"{type(error).__name__}: {error}"[:200]}
    if before is None or after is None:
        return {"skipped": "NVML does not say the energy any more"}
    joules = after - before
    return {"step_joules": joules / steps, "step_ms": took / steps * 1e3, "watts": joules / took}


def _repeat(device: Any, step: Function, seconds: float, now: Callable[[], float]) -> tuple[int, float]:
    """So many steps, and the seconds that they took in all."""
    device.wait()
    started, steps = now(), 0
    while steps == 0 or now() - started < seconds:
        for _ in range(_TOGETHER):
            step()
        device.wait()
        steps += _TOGETHER
    return steps, now() - started
