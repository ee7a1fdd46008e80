"""`mxecho doctor` on the fake device, in processes whose device is of some kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echo.cli.machine import CODE, has_code
from echo.ir.op_spec import means_true


def doctor(folder: Path, **settings: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the facts on GPUs and MXNet by name."""
    environment = {**os.environ, "ECHO_CACHE_DIR": str(folder), **settings}
    done = subprocess.run([sys.executable, "-m", "echo", "doctor", "--json"], env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    facts = json.loads(done.stdout)["facts"]
    return done.returncode, {fact["name"]: fact for fact in facts if fact["section"] in ("GPU", "MXNet")}


def test_all_is_well(tmp_path: Path) -> None:
    status, facts = doctor(tmp_path)
    assert status == 0
    wheel = facts["wheel"]["value"].split()[0]
    assert wheel in CODE
    assert facts["CUDA libraries"]["value"] == "found"
    assert facts["hook"]["value"] == "fits"
    assert facts["driver"]["remark"] == "runs CUDA up to 12.4"
    for number in (0, 1):
        text = facts[f"gpu({number})"]["value"]
        assert text.startswith("fake device, 17.2 GB, compute capability ")
        major, minor = (int(part) for part in text.split()[-1].split("."))
        assert facts[f"gpu({number}) MXNet has code"]["value"] is has_code(wheel, (major, minor))
        assert facts[f"gpu({number}) runs echo's kernels"]["value"] is True
    assert ("MXNET_USE_FUSION" in facts) == means_true(os.environ.get("MXNET_USE_FUSION", "1"))


@pytest.mark.parametrize(("setting", "value"), [("FAKE_CUDA_JIT", "222"), ("FAKE_CUDA_LAUNCH", "719")])
def test_a_device_that_refuses_the_kernels(setting: str, value: str, tmp_path: Path) -> None:
    status, facts = doctor(tmp_path, **{setting: value})
    assert status == 0, "it trains without fused operators"
    assert facts["gpu(0) runs echo's kernels"]["state"] == "off"
    assert facts["gpu(0) runs echo's kernels"]["remark"]


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    _, facts = doctor(tmp_path, FAKE_CUDA_DRIVER="8000")
    assert facts["driver"]["state"] == "off"
    assert facts["driver"]["remark"] == "too old for echo's kernels; runs CUDA up to 8.0"


def test_doctor_without_device_finds_that_cpus_train(tmp_path: Path) -> None:
    status, facts = doctor(tmp_path, FAKE_CUDA_DEVICES="0")
    assert status == 0
    assert facts["devices"]["value"] == 0
