"""The matrix products under the LSTM layer, compiled apart: small integers, so that every result is exact."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

SOURCES = Path(__file__).parents[2] / "echo" / "kernels" / "cpu"
COMPILER = shutil.which("g++")
LEVELS = ("avx512", "avx2", "portable")
AVX2 = ("avx2", "fma", "bmi1", "bmi2")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
FEATURES = {"avx512": AVX512, "avx2": AVX2, "portable": ()}

# The products as C functions. The data of an operand is [rows, depth], or [depth, rows] where it is given transposed.
DRIVER = """
#include <omp.h>
#include <vector>
#include "gemm.h"
#include "level.h"
using namespace echo::kernels::gemm;

static Operand operand(const void* data, int half, int turned, int64_t rows, int64_t depth) {
  return {data, half != 0, rows, depth, turned ? 1 : depth, turned ? rows : 1};
}

extern "C" {
const char* level_in_use() { return echo::kernels::level_name(echo::kernels::level()); }

void product(const void* a, const void* b, int half, int a_turned, int b_turned, int64_t rows, int64_t columns,
             int64_t depth, const float* start, int64_t start_stride, float* c, int64_t c_stride, int threads) {
  omp_set_num_threads(threads);
  std::vector<float> panels(packed_floats(columns, depth)), scratch(scratch_floats(rows, depth));
  pack(operand(b, half, b_turned, columns, depth), panels.data());
  multiply(operand(a, half, a_turned, rows, depth), panels.data(), columns, Start{start, start_stride}, c, c_stride,
           scratch.data());
}
}
"""

# Rows and columns of no, one and several tiles, with remainders in every instruction set; one and several depth blocks.
SHAPES = [
    (1, 1, 1), (3, 5, 2), (14, 32, 7), (15, 33, 8), (6, 16, 4), (7, 17, 5), (64, 96, 33), (257, 65, 19), (300, 31, 520),
    (13, 650, 513), (17, 33, 1300), (2, 600, 1030), (1, 700, 511), (530, 40, 21), (5, 3, 0), (0, 4, 3), (4, 0, 3),
]  # fmt: skip

BUGS = [
    ("gemm.cc", "begin ? Start{c, c_stride} : start", "start"),
    ("gemm.cc", "value_of(start, r, n) + buffer", "buffer"),
    ("gemm.cc", "row[i * row_stride + d]", "row[d]"),
    ("gemm.cc", "(start_panel + inside % size)", "(inside % size)"),
    ("gemm.cc", "start.data + r * start.stride + n, start.stride", "start.data + n, start.stride"),
    ("gemm_tile.h", "sum[r][v] += a[r] * right[v]", "sum[r][v] += a[0] * right[v]"),
]


def build(sources: Path, into: Path, *options: str) -> Path:
    if COMPILER is None:
        pytest.skip("there is no g++ to build with")
    (into / "driver.cc").write_text(DRIVER)
    command = [COMPILER, "-std=c++17", *options, "-fPIC", "-shared", "-fopenmp"]
    files = [str(sources / "gemm.cc"), str(sources / "level.cc"), str(sources / "parallel.cc"), str(into / "driver.cc")]
    subprocess.run(
        [*command, "-I", str(sources), "-I", str(SOURCES.parent), *files, "-o", str(into / "gemm.so")], check=True
    )
    return into / "gemm.so"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SOURCES, tmp_path_factory.mktemp("gemm"), "-O2", "-Wall", "-Wextra", "-Werror")


def open_at(file: Path, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """A copy of the library that uses this level: it asks for it once."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if not all(f" {feature} " in flags for feature in FEATURES[level]):
        pytest.skip(f"this processor has no {level}")
    monkeypatch.setenv("ECHO_DEBUG", f"level={level}")
    opened = ctypes.CDLL(str(shutil.copy(file, tmp_path / f"{level}.so")))
    opened.level_in_use.restype = ctypes.c_char_p
    assert opened.level_in_use().decode() == level
    return opened


def _pointer(array: Any) -> Any:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def multiply(
    opened: ctypes.CDLL, a: Any, b: Any, start: Any, c: Any, turned: tuple[bool, bool] = (False, False),
    threads: int = 1, place: Callable[[Any], Any] = lambda array: array,
) -> None:  # fmt: skip
    """C = start + A B'; ``turned`` operands are handed over transposed, at an address that ``place`` chooses."""
    held = [place(np.ascontiguousarray(x.T if turn else x)) for x, turn in zip((a, b), turned)]
    strides = 0 if start is None or start.ndim == 1 else start.shape[1], c.shape[1]
    opened.product(
        _pointer(held[0]), _pointer(held[1]), int(a.dtype == np.float16), int(turned[0]), int(turned[1]),
        *map(ctypes.c_int64, (len(a), len(b), a.shape[1])), _pointer(start), ctypes.c_int64(strides[0]),
        _pointer(c), ctypes.c_int64(strides[1]), threads,
    )  # fmt: skip


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return rng.integers(-4, 5, shape).astype(dtype)


def check_products(opened: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    ways = itertools.product((False, True), (False, True), ("float32", "float16"))
    for (rows, columns, depth), (a_turned, b_turned, dtype) in itertools.product(SHAPES, ways):
        a, b = integers(rng, (rows, depth), dtype), integers(rng, (columns, depth), dtype)
        c = np.full((rows, columns + 3), 77, np.float32)
        before = c.copy()
        c[:, :columns] = integers(rng, (rows, columns))
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        for start in (None, integers(rng, (columns,)), c):
            expected = exact if start is None else exact + start[..., :columns]
            multiply(opened, a, b, start, c, (a_turned, b_turned))
            what = f"{rows} x {columns} x {depth}, turned {a_turned} {b_turned}, {dtype}"
            assert np.array_equal(c[:, :columns], expected), what
            assert np.array_equal(c[:, columns:], before[:, columns:]), f"{what}: written beyond the columns"


@pytest.mark.every(2)
@pytest.mark.parametrize("level", LEVELS)
def test_products_of_integers_are_exact(
    level: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_products(open_at(library, level, tmp_path, monkeypatch))


@pytest.mark.parametrize("level", LEVELS)
def test_threads_change_nothing(level: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, rng = open_at(library, level, tmp_path, monkeypatch), np.random.default_rng(1)
    for rows, columns, depth in [(64, 300, 1300), (400, 65, 700), (1, 2048, 600)]:
        a, b = (rng.normal(size=(n, depth)).astype(np.float32) for n in (rows, columns))
        found = [np.empty((rows, columns), np.float32) for _ in range(3)]
        for c, threads in zip(found, (1, 2, 3)):
            multiply(opened, a, b, None, c, threads=threads)
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(found[0], found[2])
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        assert np.abs(found[0] - exact).max() <= 2e-6 * np.abs(exact).max()


@pytest.mark.parametrize("level", LEVELS)
def test_product_reads_nothing_beyond_its_operands(
    level: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands that end where an unreadable page begins: reading it would end the process."""
    opened, rng = open_at(library, level, tmp_path, monkeypatch), np.random.default_rng(2)
    libc, page, pages = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, []

    def at_the_end(array: Any) -> Any:
        size = -(-array.nbytes // page) * page
        pages.append(mmap.mmap(-1, size + page))
        base = np.frombuffer(pages[-1], np.uint8)
        guard = ctypes.c_void_p(base.ctypes.data + size)
        assert libc.mprotect(guard, ctypes.c_size_t(page), 0) == 0
        held = base[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
        held[...] = array
        return held

    for rows, columns, depth in [(3, 5, 2), (13, 31, 7), (14, 64, 40), (30, 33, 513), (1, 1, 1), (17, 2, 600)]:
        for turned, dtype in itertools.product(((False, False), (True, True)), ("float32", "float16")):
            a, b = integers(rng, (rows, depth), dtype), integers(rng, (columns, depth), dtype)
            c = np.empty((rows, columns), np.float32)
            multiply(opened, a, b, None, c, turned, place=at_the_end)
            assert np.array_equal(c, a.astype(np.float64) @ b.T.astype(np.float64))


@pytest.mark.every(6)
@pytest.mark.parametrize(("file", "text", "instead"), BUGS, ids=range(len(BUGS)))
def test_bugs_are_caught(file: str, text: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = shutil.copytree(SOURCES, tmp_path / "cpu")
    source = (wrong / file).read_text()
    assert text in source, "the source has changed: so must this bug"
    (wrong / file).write_text(source.replace(text, instead))
    opened = open_at(build(wrong, tmp_path, "-O1"), "portable", tmp_path, monkeypatch)
    with pytest.raises(AssertionError):
        check_products(opened)
