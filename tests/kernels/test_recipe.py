"""The recipe for a kernel in CONTRIBUTING.md, followed: a toy is added to a copy of the sources and built.

The tests that all kernels have find it, and it is removed without a trace.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"NAME": "blend", "reference/FILE": "reference/rows", "/FILE": "/pointwise", "plans_FILE": "plans_cells"}
MOST_FILES = 7
# Those of the tests that find it which have to pass.
TESTS = {
    "test_gradients_equal_central_differences",
    "test_kernel_of_any_shape_equals_its_reference",
    "test_every_combination_of_reqs",
    "test_every_kernel",
    "test_bugs_are_caught",
}

CPU = """// A part of one array and the rest of another.
#include "clones.h"
#include "kernels.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void mix(float part, const float* x, const float* z, float* y, int64_t n) {
  for (int64_t j = 0; j < n; ++j) y[j] = part * x[j] + (1.0f - part) * z[j];
}

ECHO_INLINE void multiply(float part, const float* x, float* y, int64_t n) {
  for (int64_t j = 0; j < n; ++j) y[j] = part * x[j];
}

void blend(const Call& call) {
  const int64_t H = call["H"];
  const float part = static_cast<float>(call.param("part"));
  const Input x(call, "x"), z(call, "z");
  const Output y(call, "y");
  in_chunks(call["B"], call["B"] * H, [&](int64_t, int64_t begin, int64_t end) {
    float x_buffer[kTile], z_buffer[kTile], result[kTile];
    in_tiles((end - begin) * H, kTile, [&](int64_t j, int64_t n) {
      const int64_t at = begin * H + j;
      cloned<mix>(part, x.read(at, n, x_buffer), z.read(at, n, z_buffer), result, n);
      y.write(at, n, result);
    });
  });
}

void blend_grad(const Call& call) {
  const float part = static_cast<float>(call.param("part"));
  const Input dy(call, "dy");
  const Output dx(call, "dx"), dz(call, "dz");
  in_tiles(call["B"] * call["H"], kTile, [&](int64_t at, int64_t n) {
    float buffer[kTile], result[kTile];
    const float* const head = dy.read(at, n, buffer);
    cloned<multiply>(part, head, result, n);
    dx.write(at, n, result);
    cloned<multiply>(1.0f - part, head, result, n);
    dz.write(at, n, result);
  });
}

const CpuKernel kBlend("blend", blend);
const CpuKernel kBlendGrad("blend_grad", blend_grad);

}  // namespace
}  // namespace kernels
}  // namespace echo
"""

REFERENCE = '''

def blend(x: Array, z: Array, *, part: float) -> Arrays:
    """A part of x and the rest of z."""
    x, z = double(x, z)
    return (part * x + (1 - part) * z,)


def blend_grad(dy: Maybe, x: Array, z: Array, y: Maybe = None, *, part: float) -> Arrays:
    dy = or_zeros(dy, x)
    return part * dy, (1 - part) * dy
'''

ARGUMENTS = """
struct Blend {
  const void *x, *z;
  Output y;
  Long rows, hidden;
  float part;
  int wide;
};

struct BlendGrad {
  const void* dy;
  Output dx, dz;
  Long rows, hidden;
  float part;
  int wide;
};
"""

DEVICE = """
template <typename T, int W>
__device__ void blend(const Blend& a) {
  each_column<W>(a.rows, a.hidden, [&](Long row, Long j) {
    Pack<W> x = load<T, W>(a.x, row * a.hidden + j);
    const Pack<W> z = load<T, W>(a.z, row * a.hidden + j);
    for (int k = 0; k < W; ++k) x.v[k] = a.part * x.v[k] + (1.f - a.part) * z.v[k];
    put<T, W>(a.y, row * a.hidden + j, x);
  });
}

template <typename T, int W>
__device__ void blend_grad(const BlendGrad& a) {
  each_column<W>(a.rows, a.hidden, [&](Long row, Long j) {
    Pack<W> x = load<T, W>(a.dy, row * a.hidden + j), z = x;
    for (int k = 0; k < W; ++k) x.v[k] *= a.part, z.v[k] *= 1.f - a.part;
    put<T, W>(a.dx, row * a.hidden + j, x);
    put<T, W>(a.dz, row * a.hidden + j, z);
  });
}
"""

PLANS = """
void blend(const Call& call, Queue& queue) {
  Blend a = {call.in("x"), call.in("z"), output(call, "y"), call["B"], call["H"],
             static_cast<float>(call.param("part")), 0};
  a.wide = wide(call.half(), a.hidden, {a.x, a.z, a.y.data});
  queue.launch("blend", call.half(), grid_of_columns(a.rows, a.hidden, a.wide), a);
}

void blend_grad(const Call& call, Queue& queue) {
  BlendGrad a = {call.in("dy"), output(call, "dx"), output(call, "dz"), call["B"], call["H"],
                 static_cast<float>(call.param("part")), 0};
  a.wide = wide(call.half(), a.hidden, {a.dy, a.dx.data, a.dz.data});
  queue.launch("blend_grad", call.half(), grid_of_columns(a.rows, a.hidden, a.wide), a);
}

const CudaKernel kBlend("blend", blend);
const CudaKernel kBlendGrad("blend_grad", blend_grad);
"""

# Of each file: the text before which something is written ("" is its end), and the new text.
WRITTEN = {
    "echo/kernels/table.cc": [("};\n\nstd::vector", '    {"blend", "x[B,H] z[B,H]", "y[B,H]", "part", "dy"},\n')],
    "tests/support/reference/rows.py": [("", REFERENCE)],
    "echo/kernels/cpu/blend.cc": [("", CPU)],
    "echo/kernels/cuda/arguments.h": [("\n}  // namespace echo_cuda", ARGUMENTS)],
    "echo/kernels/cuda/pointwise.cuh": [
        ("\n}  // namespace echo_cuda", DEVICE),
        ("#endif\n\n#endif  // ECHO_KERNELS_CUDA_P", "ECHO_WIDE(blend, Blend)\nECHO_WIDE(blend_grad, BlendGrad)\n"),
    ],
    "echo/kernels/cuda/plans_cells.cc": [("\n}  // namespace\n}  // namespace echo_cuda", PLANS)],
    "tests/kernels/table.py": [
        ('    "layer_norm": _spec(', '    "blend": _spec("B,H B,H", "B,H", part=0.3),\n'),
        ('    "layer_norm": {"N"', '    "blend": {"B": 3, "H": 9},\n'),
        ('    ("relu", "bits.cc"', '    ("blend", "blend.cc", "(1.0f - part) * z[j]", "part * z[j]"),\n'),
    ],
}  # fmt: skip


def recipe() -> list[str]:
    """The files that CONTRIBUTING.md names, for the toy."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## How to add a kernel\n")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    for name, instead in NAMES.items():
        files = [file.replace(name, instead) for file in files]
    return files


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and folder / "build" not in path.parents)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write(folder: Path) -> None:
    for file, parts in WRITTEN.items():
        path = folder / file
        text = path.read_text() if path.exists() else ""
        for later, new in parts:
            assert not later or text.count(later) == 1, f"{file}: {later!r} is not there once"
            text = text.replace(later, new + later) if later else text + new
        path.write_text(text)


def remove(folder: Path) -> None:
    for file, parts in WRITTEN.items():
        path = folder / file
        text = path.read_text()
        for _, new in parts:
            text = text.replace(new, "")
        if text:
            path.write_text(text)
        else:
            path.unlink()


def sources(folder: Path) -> list[Path]:
    """Those that CMakeLists.txt builds."""
    patterns = re.findall(r"file\(GLOB kernel_sources CONFIGURE_DEPENDS (.*)\)", (ROOT / "CMakeLists.txt").read_text())
    return sorted(path for pattern in patterns[0].split() for path in folder.glob(pattern))


def build(folder: Path, objects: Path) -> ctypes.CDLL:
    """The library, from what has no object yet, into the package."""
    kernels = folder / "echo" / "kernels"
    cuda = f'-DECHO_CUDA_FOLDER="{kernels / "cuda"}"'
    flags = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", cuda, f"-I{kernels / 'include'}", f"-I{kernels}"]
    missing = [path for path in sources(folder) if not (objects / f"{path.stem}.o").exists()]
    subprocess.run(["g++", *flags, "-c", *map(str, missing)], cwd=objects, check=True)
    library = kernels / "libecho_kernels.so"
    made = [str(objects / f"{path.stem}.o") for path in sources(folder)]
    subprocess.run(["g++", "-shared", "-Wl,-z,defs", *made, "-o", str(library), "-ldl", "-lpthread"], check=True)
    return ctypes.CDLL(str(shutil.copy(library, objects / f"{len(made)}.so")))


def operators(library: ctypes.CDLL) -> int:
    """How many MXNet would find there."""
    return int(library._opRegSize())


def kernels_tests(folder: Path, scratch: Path) -> str:
    """The results of all kernels' tests for the toy; without ``site``, which would bring the installed echo in."""
    paths = os.pathsep.join([str(folder), sysconfig.get_path("purelib")])
    tests = [f"tests/kernels/test_{name}.py" for name in ("reference", "cpu", "cuda_kernels", "mutants")]
    options = ["-v", "-k", "blend", "-p", "no:cacheprovider", "--noconftest", "-W", "ignore::pytest.PytestWarning"]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch)
    command = [sys.executable, "-S", "-m", "pytest", *options, "-c", os.devnull, "--rootdir", str(folder), *tests]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_recipe_is_short() -> None:
    assert sorted(recipe()) == sorted(WRITTEN)
    assert len(WRITTEN) <= MOST_FILES


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the toy is compiled by g++")
def test_a_toy_by_the_recipe(tmp_path: Path) -> None:
    folder, objects = tmp_path / "sources", tmp_path / "objects"
    objects.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.so")
    for part in ("echo", "benchmarks", "tests/kernels", "tests/support"):
        shutil.copytree(ROOT / part, folder / part, ignore=unwanted)
    before = contents(folder)

    write(folder)
    after = contents(folder)
    assert sorted(recipe()) == [name for name in after if after[name] != before.get(name)]
    with_toy = operators(build(folder, objects))
    said = kernels_tests(folder, tmp_path / "scratch")
    passed = set(re.findall(r"::(\w+)\[.*\bPASSED", said))
    assert passed >= TESTS, said
    assert " failed" not in said, said

    remove(folder)
    (folder / "echo/kernels/libecho_kernels.so").unlink()
    assert contents(folder) == before
    for stem in ("table", "plans_cells", "blend", "sources"):
        (objects / f"{stem}.o").unlink()
    assert operators(build(folder, objects)) == with_toy - 1
