"""A device or a driver that fails costs one warning and the fused operators, never the training."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def train(folder: Path, **settings: str) -> tuple[int, list[str]]:
    """How many fused operators run, and what echo said, with these settings of the fake device."""
    environment = {**os.environ, "ECHO_CACHE_DIR": str(folder), "ECHO_LOG": "WARNING", **settings}
    done = subprocess.run([sys.executable, "-m", "tests.fake_gpu.failing"], cwd=ROOT, env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "echo:" in line and "planning stopped" not in line]
    return int(done.stdout), said


def test_all_is_well(tmp_path: Path) -> None:
    fused, said = train(tmp_path)
    assert fused > 0
    assert said == []


@pytest.mark.parametrize(
    "settings",
    [
        {"FAKE_CUDA_JIT": "222"},  # the driver is too old for the PTX
        {"FAKE_CUDA_JIT": "2"},  # out of memory
        {"FAKE_CUDA_LAUNCH": "719"},  # launch failure
    ],
    ids=["JIT refused", "out of memory", "launch failure"],
)
def test_a_device_that_refuses_the_kernels_costs_one_warning(settings: dict[str, str], tmp_path: Path) -> None:
    fused, said = train(tmp_path, **settings)
    assert fused == 0
    assert len(said) == 1, said
    assert "no operator is fused: the kernels do not run on gpu(0)" in said[0]


def test_layers_without_cooperative_launches_go_step_by_step(tmp_path: Path) -> None:
    fused, said = train(tmp_path, FAKE_CUDA_COOPERATIVE="720")
    assert fused > 0
    assert len(said) == 1, said
    assert "LSTM layers go step by step" in said[0]


def test_a_device_that_fails_in_the_middle_of_a_training_is_an_error_of_mxnet_that_names_the_kernel(
    tmp_path: Path,
) -> None:
    """A program can catch it, save what it has, and go on where the device does."""
    environment = {**os.environ, "ECHO_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "tests.fake_gpu.failing_later"], cwd=ROOT, env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, refused, well, full, well_again = done.stdout.splitlines()
    assert (first, well, well_again) == ("ok", "ok", "ok")
    assert re.search(r"operator '_echo_lstm_(layer|cell)'", refused), refused
    assert re.search(r"launching \w+_f32: ", refused), refused
    assert "cudaMalloc" in full


ABSENT = """
import mxnet as mx, echo
symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64)) * 2))
shapes, gpu = {{"data": (64, 64)}}, mx.gpu({number})
for bind in (lambda: echo.plan(symbol, ctx=gpu, **shapes), lambda: echo.optimize(symbol).simple_bind(gpu, **shapes),
             lambda: symbol.simple_bind(gpu, **shapes)):
    try:
        bind()
    except Exception as error:
        print(type(error).__name__, *str(error).splitlines()[:1], sep=": ")
    echo.enable()
print(echo.plan(symbol, ctx=mx.cpu(), **shapes).before.planned > 0)
"""


@pytest.mark.parametrize(("number", "devices"), [(0, 0), (-1, 0), (2, 2), (7, 2)])
def test_a_device_that_is_not_there_is_an_error_that_a_program_can_catch(number: int, devices: int) -> None:
    """MXNet's own would end the process once memory on it is let go."""
    environment = {**os.environ, "FAKE_CUDA_DEVICES": str(devices)}
    done = subprocess.run([sys.executable, "-c", ABSENT.format(number=number)], cwd=ROOT, env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    planned, bound, stock, goes_on = done.stdout.splitlines()
    assert (
        planned
        == f"UnsupportedError: gpu({number}) is not there: expected a number below {devices}, that of CUDA's GPUs"
    )
    assert bound == stock, "MXNet's own error"
    assert stock.startswith("RuntimeError: simple_bind error")
    assert goes_on == "True"


def test_plans_of_one_device_are_not_those_of_another(tmp_path: Path) -> None:
    """The cache of a run without kernels does not keep fused operators from the next, nor the other way round."""
    assert train(tmp_path, FAKE_CUDA_JIT="222")[0] == 0
    assert train(tmp_path)[0] > 0
    assert train(tmp_path, FAKE_CUDA_JIT="222")[0] == 0
