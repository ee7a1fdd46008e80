"""The driver, asked through a libcuda.so.1 of a few lines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echo.system import cuda

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

DRIVER = """
#include <stdio.h>
int cuInit(unsigned flags) { return DEVICES ? 0 : 100; }
int cuDriverGetVersion(int* to) { *to = 11040; return 0; }
int cuDeviceGetCount(int* to) { *to = DEVICES; return 0; }
int cuDeviceGet(int* to, int number) { *to = number + 5; return 0; }
int cuDeviceGetName(char* to, int bytes, int device) { return snprintf(to, bytes, "device %d", device) < 0; }
int cuDeviceTotalMem_v2(unsigned long* to, int device) { *to = (unsigned long)device << 30; return 0; }
int cuDeviceGetPCIBusId(char* to, int bytes, int device) { return snprintf(to, bytes, "0000:%02x:00.0", device) < 0; }
int cuDeviceGetAttribute(int* to, int which, int device) { *to = which == 75 ? 8 : which == 76 ? 6 : -1; return 0; }
"""
ASK = """
import sys
from echo.system import cuda
try:
    print(tuple(cuda.driver()) if len(sys.argv) == 1 else cuda.bus_ids())
except LookupError as error:
    print(error)
"""


def ask(folder: Path, source: str = "", *flags: str, ids: bool = False) -> str:
    """The output of a process with the driver that this source makes, or without one if it is empty."""
    if source:
        (folder / "driver.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", folder / "libcuda.so.1", folder / "driver.c"],
                       check=True, timeout=60)  # fmt: skip
    command = [sys.executable, "-c", ASK, *(["ids"] if ids else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60,
                          env={"LD_LIBRARY_PATH": str(folder)})  # fmt: skip
    return done.stdout.strip()


def test_driver_lists_its_devices(tmp_path: Path) -> None:
    text = ask(tmp_path, DRIVER, "-DDEVICES=2").replace(repr(cuda._release()), "''")
    devices = (cuda.Gpu("device 5", 5 << 30, (8, 6)), cuda.Gpu("device 6", 6 << 30, (8, 6)))
    assert text == repr(((11, 4), "", devices))
    assert ask(tmp_path, ids=True) == "('0000:05:00.0', '0000:06:00.0')"


def test_a_driver_without_a_device(tmp_path: Path) -> None:
    assert ask(tmp_path, DRIVER, "-DDEVICES=0").startswith("((11, 4), ")
    assert ask(tmp_path, DRIVER, "-DDEVICES=0").endswith(", ())")
    assert ask(tmp_path, ids=True) == "the NVIDIA driver finds no device"
    assert ask(tmp_path, DRIVER.replace("snprintf(to", "1 || snprintf(to"), "-DDEVICES=1", ids=True) == (
        "the NVIDIA driver does not say where device 0 is"
    )


def test_a_driver_that_lacks_functions(tmp_path: Path) -> None:
    assert ask(tmp_path, "int cuInit(unsigned flags) { return 0; }").startswith("the NVIDIA driver (libcuda.so.1) is")


def test_no_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    assert ask(tmp_path).startswith("there is no NVIDIA driver: ")
    assert ask(tmp_path, ids=True).startswith("there is no NVIDIA driver that fits: ")


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\nGCC version:  gcc 12.2.0", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54  Release Build", "550.54"),
        ("", ""),
    ],
)
def test_the_release(text: str, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(cuda, "_RELEASE", tmp_path / "version")
    assert cuda._release() == release
    monkeypatch.setattr(cuda, "_RELEASE", tmp_path / "absent")
    assert cuda._release() == ""
