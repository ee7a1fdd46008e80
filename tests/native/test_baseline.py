"""The libraries ask for nothing that a machine of manylinux_2_28 lacks, whatever the machine that built them has."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from echo import kernels, native

# https://peps.python.org/pep-0600/ and auditwheel's table: AlmaLinux 8 has glibc 2.28 and the libstdc++ of GCC 8.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
EVERYWHERE = {
    *("libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libstdc++.so.6"),
    "ld-linux-x86-64.so.2",
}
NAMES = ("counter", "hook", "kernels", "planner")

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or "ECHO_LIBRARIES" in os.environ, reason="these are built in another way"
)


def installed(name: str) -> Path:
    folders = [*native.__path__, *kernels.__path__]
    return next(path for folder in folders if (path := Path(folder) / f"libecho_{name}.so").is_file())


def read(library: Path, what: str) -> str:
    return subprocess.run(["readelf", "-W", what, str(library)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_versions_that_are_asked_for_are_old(name: str) -> None:
    asked = re.findall(r"Name: ([A-Z]+)_([0-9.]+) ", read(installed(name), "--version-info"))
    assert {family for family, _ in asked} >= {"GLIBC", "CXXABI"}
    newer = [(family, text) for family, text in asked if tuple(map(int, text.split("."))) > NEWEST[family]]
    assert not newer, "give these an older version in echo/native/baseline.h, or do without"


@pytest.mark.parametrize("name", NAMES)
def test_library_links_what_every_machine_has_alone(name: str) -> None:
    linked = set(re.findall(r"\(NEEDED\).*\[(.+)\]", read(installed(name), "--dynamic")))
    assert "libc.so.6" in linked
    assert linked <= EVERYWHERE


@pytest.mark.parametrize("name", NAMES)
def test_stand_ins_for_newer_functions_are_hidden(name: str) -> None:
    shown = [line for line in read(installed(name), "--dyn-syms").splitlines() if " UND " not in line]
    assert len(shown) > 3
    assert not [line for line in shown if re.search("GOMP|omp_|single_threaded|bad_array_new", line)]
