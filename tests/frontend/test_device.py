"""The device key names what measured seconds depend on."""

from __future__ import annotations

import sys
import types

import mxnet as mx
import pytest

from echo.frontend.device import device_key


def test_the_device_key_names_what_times_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    key = device_key(mx.cpu())
    assert key == device_key(mx.cpu())
    assert mx.__version__ in key
    assert "cores" in key
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert device_key(mx.cpu()) != key


def test_the_device_key_of_a_gpu_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = types.ModuleType("pynvml")
    names = {0: b"NVIDIA A10G", 1: "NVIDIA T4"}
    nvml.__dict__.update(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=names.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert device_key(mx.gpu(0)).startswith("NVIDIA A10G, ")
    assert device_key(mx.gpu(1)).startswith("NVIDIA T4, ")
    assert device_key(mx.gpu(2)).startswith("gpu (KeyError), ")
