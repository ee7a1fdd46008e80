"""Which device this is, and everything else that measured seconds depend on."""

from __future__ import annotations

import contextlib
import os

import mxnet as mx


def device_key(ctx: mx.Context) -> str:
    """Names the device and everything else that measured seconds depend on."""
    hardware = _gpu_name(ctx.device_id) if ctx.device_type == "gpu" else _cpu_name()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    one_dnn = os.environ.get("MXNET_MKLDNN_ENABLED", "1")
    return f"{hardware}, {_cores()} cores, OMP_NUM_THREADS {threads}, oneDNN {one_dnn}, mxnet {mx.__version__}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    """Model, family and stepping: on virtual machines the name alone says little."""
    keys = ("model name", "cpu family", "model", "stepping", "cache size")
    values: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in keys:
                values.setdefault(key.strip(), value.strip())
    return " ".join(values.get(key, "?") for key in keys)


def _gpu_name(index: int) -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # no driver, no library: any GPU of this machine shares one table
        return f"gpu ({type(error).__name__})"
    return name.decode() if isinstance(name, bytes) else str(name)
