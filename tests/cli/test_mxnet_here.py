"""What `mxecho doctor` says of the MXNet that is there, or is not; each in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echo.cli import mxnet_here
from echo.cli.fact import FINE, OFF, STOPS, Fact
from echo.frontend.examine import Examined
from tests.stub_libraries import mxnet, stub, wheels

ASK = """
import dataclasses, json, sys
{first}
from echo.cli.mxnet_here import mxnet
here = mxnet()
print(json.dumps([here.wheel, here.examined is not None, [dataclasses.asdict(fact) for fact in here.facts]]))
"""


def ask(first: str) -> tuple[str, bool, dict[str, Any]]:
    """The wheel, whether it was examined, and the facts by name."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ASK.format(first=first)], capture_output=True,
                          text=True, timeout=120, check=True)  # fmt: skip
    wheel, is_examined, facts = json.loads(done.stdout.splitlines()[-1])
    return wheel, is_examined, {fact["name"]: fact for fact in facts}


def test_mxnet_as_it_should_be() -> None:
    wheel, is_examined, facts = ask("")
    assert is_examined
    assert facts["wheel"]["value"] == f"{wheel} 1.9.1"
    assert facts["hook"]["value"] == "fits"
    assert facts["fused operators"]["value"] == "on"
    assert {fact["state"] for fact in facts.values()} == {FINE}


def test_without_mxnet() -> None:
    _, is_examined, facts = ask("sys.modules['mxnet'] = None")
    assert not is_examined
    assert facts["import"]["state"] == STOPS
    assert "pip install 'mxnet-echo[cpu]'" in facts["import"]["remark"]


def test_another_version(tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("__version__ = '1.8.0'\n")
    _, is_examined, facts = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert not is_examined
    assert facts["version"]["value"] == "1.8.0"
    assert facts["fits echo"]["remark"] == "expected mxnet 1.9.1, got 1.8.0"
    assert facts["fits echo"]["state"] == STOPS


@pytest.mark.parametrize("error", ["OSError('libgomp.so.1 is not there')", "ImportError('no module x', name='x')"])
def test_an_mxnet_that_does_not_import(error: str, tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text(f"raise {error}\n")
    _, is_examined, facts = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert not is_examined
    assert facts["import"]["state"] == STOPS
    assert facts["import"]["remark"].startswith(error.split("(")[0])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_cuda_libraries_that_are_missing(tmp_path: Path) -> None:
    made = wheels(tmp_path / "away", ["libcudart.so.11.0"])
    mxnet(tmp_path, [*made.values(), stub(tmp_path / "away" / "libcuda.so.1", 1)])
    info = tmp_path / "mxnet_cu112-1.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mxnet-cu112\nVersion: 1.9.1\n")
    wheel, is_examined, facts = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert (wheel, is_examined) == ("mxnet-cu112", False)
    assert facts["CUDA libraries"]["state"] == facts["import"]["state"] == STOPS
    assert "libcudart.so.11.0, libcuda.so.1" in facts["CUDA libraries"]["remark"]


def test_two_wheels() -> None:
    (fact, *_) = mxnet_here._wheels({"mxnet": "1.9.1", "mxnet-cu112": "1.9.1"})
    assert (fact.value, fact.state) == ("mxnet 1.9.1, mxnet-cu112 1.9.1", OFF)
    assert "uninstall" in fact.remark


def test_a_damaged_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libmxnet.so").write_bytes(b"no library")
    monkeypatch.setattr("echo.compat.libmxnet", lambda: tmp_path / "libmxnet.so")
    *_, fact = mxnet_here._wheels({"mxnet": "1.9.1"})
    assert (fact.name, fact.state) == ("library is whole", STOPS)


def test_a_hook_that_does_not_fit() -> None:
    facts = list(mxnet_here._examined(Examined("an unknown function", "", "the driver is too old", (), True)))
    assert facts == [
        Fact("MXNet", "hook", "does not fit",
             "an unknown function: MXNet's mirroring attributes are used, which save less", OFF),
        Fact("MXNet", "fused operators", "off", "they need the hook", OFF),
        Fact("MXNet", "GPUs", "none", "the driver is too old", OFF),
        Fact("MXNet", "MXNET_USE_FUSION", "on", "graphs that echo plans are bound without it"),
    ]  # fmt: skip
