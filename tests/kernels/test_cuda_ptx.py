"""The committed PTX: made from the present sources, complete, and fit for ptxas."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from echo.kernels.cuda import ptx
from tests.kernels import grid_barrier


def test_is_of_the_present_sources() -> None:
    with ptx.PTX.open() as file:
        assert file.readline().rstrip() == ptx.first_line(), "run `make ptx` and commit kernels.ptx"


def test_has_every_kernel_for_old_devices() -> None:
    text = ptx.PTX.read_text()
    assert ".target sm_50" in text
    assert re.findall(r"^\.version (.*)$", text, re.MULTILINE) == ["6.0"]  # that of CUDA 9: drivers since R384
    entries = set(re.findall(r"\.visible \.entry (\w+)\(", text))
    named = set()
    for path in ptx.sources():
        source = path.read_text()
        both = re.findall(r"^ECHO_(?:WIDE\(|BOTH\(\d, )(\w+), \w+\)", source, re.MULTILINE)
        tiles = re.findall(r"^  ECHO_KERNEL\(\w+, (\w+)_##size##_##type, ", source, re.MULTILINE)
        named |= {f"{name}_{size}" for name in tiles for size in ("small_f32", "small_f16", "big_f32", "big_f16")}
        halves = re.findall(r"^  ECHO_KERNEL\(\w+, (\w+)_##size##_f16, ", source, re.MULTILINE)
        named |= {f"{name}_{size}_f16" for name in halves for size in ("small", "big")}
        named |= {f"{name}_{kind}" for name in both for kind in ("f32", "f16")}
        named |= set(re.findall(r"^ECHO_KERNEL\(\d, (\w+), ", source, re.MULTILINE))
        attentions = re.findall(r"^ECHO_ATTENTION\((\w+), \w+\)", source, re.MULTILINE)
        named |= {f"{name}{mask}_{kind}" for name in attentions for mask in ("", "_masked") for kind in ("f32", "f16")}
    assert len(named) > 80
    assert named == entries


def test_every_kernel_is_a_module_without_the_others() -> None:
    """As the launcher cuts the file: in front of a kernel stands what all need, behind one the next."""
    head, *kernels = re.split(r"^(?=\.visible \.entry )", ptx.PTX.read_text(), flags=re.MULTILINE)
    declared = [line.split()[0] for line in head.splitlines()]
    assert declared == ["//", ".version", ".target", ".address_size", ".extern"]
    for kernel in kernels:
        signature, body = kernel.split("\n{\n", 1)
        assert re.fullmatch(r"\.visible \.entry \w+\((?:\n\.param [^\n]+)\n\)(?:\n\.[^\n]+)*", signature)
        assert body.endswith("\n}\n")
        assert not re.search(r"^(\.func|\.extern|\.visible|\.weak|\.entry)", body, re.MULTILINE)
        assert body.count("{") == body.count("}") - 1


@pytest.mark.slow
def test_is_what_the_compiler_gives() -> None:
    """In a process of its own: NVRTC leaves its thread in another locale."""
    if ptx.nvrtc_path() is None:
        pytest.skip("NVRTC 11.8 is not installed: make ptx installs it")
    code = "from echo.kernels.cuda import ptx; print(ptx.compile_ptx(ptx.nvrtc_path()), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == ptx.PTX.read_text()


def test_the_barrier_of_the_grid_polls() -> None:
    """By loads that ptxas may not remove."""
    kernels = grid_barrier.kernels_of(ptx.PTX.read_text(), grid_barrier.PTX)
    assert len(kernels) == grid_barrier.COUNT
    assert [name for name, lines in kernels.items() if not grid_barrier.waits(lines, grid_barrier.PTX)] == []


def test_shared_memory_is_aligned_for_wide_reads() -> None:
    """All of it but that of sums over warps, which are read number by number."""
    arrays = re.findall(r"\.shared \.align (\d+) \.b8 (\w+)\[", ptx.PTX.read_text())
    assert arrays
    by_number = ("sum_rows", "of_warps")
    assert [name for align, name in arrays if int(align) < 16 and not any(part in name for part in by_number)] == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_50", "sm_70", "sm_75", "sm_90", "sm_120"])
def test_assembles_without_spills(architecture: str) -> None:
    """By every ptxas here that knows the architecture. `make ptx` assembles each new PTX for all of `ARCHITECTURES`."""
    ptxases = [ptxas for ptxas in ptx.tools("ptxas") if architecture in ptx.known_architectures(ptxas)]
    if not ptxases:
        pytest.skip(f"no ptxas here knows {architecture}: make sass installs one for sm_50 to sm_90")
    for ptxas in ptxases:
        kernels = ptx.assemble(ptxas, ptx.PTX, architecture)
        assert len(kernels) > 80
        assert {name: spilled for name, (_, spilled) in kernels.items() if spilled} == {}, ptxas
