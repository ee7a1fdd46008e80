"""The PTX of the CUDA kernels: complete, cut into kernels, and fit for ptxas."""

from __future__ import annotations

import re

import pytest

from tests.kernels import grid_barrier
from tests.support import ptx
from tests.support.ptx import ptx_files


def test_every_source_is_in_the_library() -> None:
    listed = re.findall(r'^  X\(\w+, "([^"]+)", "[./]*"\)', (ptx.CUDA / "sources.cc").read_text(), re.MULTILINE)
    assert listed == [path.name for path in ptx.sources()]
    with_kernels = [path.stem for path in ptx.sources() if f"#if ECHO_IN({path.stem})" in path.read_text()]
    assert list(ptx_files()) == with_kernels
    assert all(f'"{family}.cuh"' in (ptx.CUDA / "kernels.cu").read_text() or family == "attention"
               for family in with_kernels)  # fmt: skip


def test_has_every_kernel_for_old_devices() -> None:
    for text in ptx.texts().values():
        assert ".target sm_50" in text
        assert re.findall(r"^\.version (.*)$", text, re.MULTILINE) == ["6.0"]  # that of CUDA 9: drivers since R384
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
    assert named == set(ptx.kernels())
    assert sum(text.count(".visible .entry ") for text in ptx.texts().values()) == len(named)


def test_every_kernel_is_a_module_without_the_others() -> None:
    """As the launcher cuts the file: before a kernel stands what all need, after it the next one."""
    for text in ptx.kernels().values():
        head, kernel = text.split(".visible", 1)
        declared = [line.split()[0] for line in head.splitlines()]
        assert declared[:3] == [".version", ".target", ".address_size"]
        assert declared[3:] in ([], [".extern"])
        signature, body = kernel.removesuffix("// end\n").split("\n{\n", 1)
        assert re.fullmatch(r" \.entry \w+\((?:\n\.param [^\n]+)\n\)(?:\n\.[^\n]+)*", signature)
        assert body.endswith("\n}\n")
        assert "//" not in body
        assert not re.search(r"^(\.func|\.extern|\.visible|\.weak|\.entry)", body, re.MULTILINE)
        assert body.count("{") == body.count("}") - 1


def test_the_barrier_of_the_grid_polls() -> None:
    """By loads that ptxas may not remove."""
    kernels = grid_barrier.kernels_of(ptx.joined(ptx.kernels()), grid_barrier.PTX)
    assert len(kernels) == grid_barrier.COUNT
    assert [name for name, lines in kernels.items() if not grid_barrier.waits(lines, grid_barrier.PTX)] == []


def test_shared_memory_is_aligned_for_wide_reads() -> None:
    """All of it but that of sums over warps, which are read number by number."""
    arrays = re.findall(r"\.shared \.align (\d+) \.b8 (\w+)\[", ptx.joined(ptx.kernels()))
    assert arrays
    by_number = ("sum_rows", "of_warps")
    assert [name for align, name in arrays if int(align) < 16 and not any(part in name for part in by_number)] == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_50", "sm_70", "sm_75", "sm_90", "sm_120"])
def test_assembles_without_spills(architecture: str) -> None:
    """By every ptxas here that knows the architecture. `make ptx` assembles for all of `ARCHITECTURES`."""
    ptxases = [ptxas for ptxas in ptx.tools("ptxas") if architecture in ptx.known_architectures(ptxas)]
    if not ptxases:
        pytest.skip(f"no ptxas here knows {architecture}: make sass installs one for sm_50 to sm_90")
    for ptxas in ptxases:
        files = map(ptx.put, ptx_files())
        kernels = {name: row for path in files for name, row in ptx.assemble(ptxas, path, architecture).items()}
        assert len(kernels) > 80
        assert {name: spilled for name, (_, spilled) in kernels.items() if spilled} == {}, ptxas
