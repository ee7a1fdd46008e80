"""The committed PTX: made from the present sources, complete, and fit for ptxas."""

from __future__ import annotations

import re
import shutil

import pytest

from echo.kernels.cuda import ptx


def test_is_of_the_present_sources() -> None:
    with ptx.PTX.open() as file:
        assert file.readline().rstrip() == ptx.first_line(), "run `make ptx` and commit kernels.ptx"


def test_has_every_kernel_for_old_devices() -> None:
    text = ptx.PTX.read_text()
    assert ".target sm_50" in text
    entries = set(re.findall(r"\.visible \.entry (\w+)\(", text))
    named = set()
    for path in ptx.sources():
        for name in re.findall(r"^ECHO_(?:WIDE\(|BOTH\(\d, )(\w+), \w+\)", path.read_text(), re.MULTILINE):
            named |= {f"{name}_f32", f"{name}_f16"}
    assert named
    assert named <= entries
    gemms = entries - named
    assert len(gemms) == 12
    assert all(name.startswith("gemm_") for name in gemms)


@pytest.mark.slow
def test_is_what_the_compiler_gives() -> None:
    nvrtc = ptx.nvrtc_path()
    if nvrtc is None:
        pytest.skip("NVRTC 11.8 is not installed: make ptx installs it")
    assert ptx.compile_ptx(nvrtc) == ptx.PTX.read_text()


@pytest.mark.slow
def test_assembles_without_spills() -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("there is no ptxas on the PATH")
    architectures = ptx.known_architectures(ptxas)
    assert architectures
    kernels = ptx.assemble(ptxas, ptx.PTX, architectures[0])
    assert len(kernels) > 40
    assert {name: spilled for name, (_, spilled) in kernels.items() if spilled} == {}
