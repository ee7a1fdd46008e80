"""Measured times depend on the GPU as CUDA names it, and on the versions of the libraries that compute on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx

from echo.estimators.cost_table import CostTable
from echo.frontend.plan_key import device_key

ROOT = Path(__file__).resolve().parents[2]
KEY = "import mxnet as mx; from echo.frontend.plan_key import device_key; print(device_key(mx.gpu(0)))"


def key(**settings: str) -> str:
    done = subprocess.run([sys.executable, "-c", KEY], cwd=ROOT, env={**os.environ, **settings}, capture_output=True,
                          text=True, check=True)  # fmt: skip
    return done.stdout.strip()


def test_the_key_names_gpu_driver_and_libraries(tmp_path: Path) -> None:
    here = device_key(mx.gpu(0))
    assert here.startswith("fake CUDA device, driver ")
    assert ", CUDA 12040/" in here
    assert ", cuDNN 8100, " in here
    assert here == device_key(mx.gpu(1)) == key(), "equal GPUs share their times"
    other = key(FAKE_CUDNN_VERSION="8204")
    assert other == here.replace("cuDNN 8100", "cuDNN 8204")
    assert CostTable(other, tmp_path).path != CostTable(here, tmp_path).path, "of another version all is measured again"
