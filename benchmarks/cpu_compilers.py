"""The CPU kernels as different compilers build them, side by side: every compiler at hand, every level of instructions.

    python -m benchmarks.cpu_compilers [--rounds 40]

One thread. A time is the least of many, taken in turns, so that all compilers see the same machine. Writes
cpu_compilers.json: microseconds, and parts of those of the first compiler.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_cases import Case, attention_case, draw
from benchmarks.gpu_kernels import KERNELS as TABLE
from benchmarks.record import parser, save
from echo.native import function
from tests.support import kernel_calls, reference

KERNELS = Path(__file__).resolve().parents[1] / "echo" / "kernels"
LEVELS = ("avx512", "avx2", "portable")
COMPILERS = r"(?:g\+\+|clang\+\+)(?:-\d+)?"
CASES = (
    Case("lstm_cell", {"B": 64, "H": 512}),
    Case("gru_cell", {"B": 64, "H": 512}),
    Case("gru_reset", {"B": 64, "H": 512}, {"keeps": 0}),
    Case("gru_mix", {"B": 64, "H": 512}),
    Case("lstm_norm_cell", {"B": 64, "H": 512}, {"eps": 1e-5}),
    Case("weighted_sum", {"B": 32, "T": 30, "H": 512}),
    Case("mlp_score", {"B": 16, "T": 30, "H": 512}, {"eps": 1e-5}),
    attention_case((16, 40, 40, 64, 64), 0.125, absent=(3, 4)),
    Case("layer_norm", {"N": 256, "H": 512}, {"eps": 1e-5}),
    Case("bias_act", {"N": 256, "H": 512}, {"act": 2}),
    Case("dropout", {"n": 1 << 17}, {"keep": 0.7, "seed": 3, "offset": 5}),
    Case("relu", {"n": 1 << 17}),
    Case("apply_mask", {"n": 1 << 17}),
    Case("lstm_layer", {"T": 8, "B": 32, "I": 256, "H": 256}, {"reverse": 0}),
)  # fmt: skip


def compilers() -> list[str]:
    """The C++ compilers on the PATH, GCC's first and the newest first, without those that are another's name."""
    found: dict[str, str] = {}
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for path in sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir()):
        if re.fullmatch(COMPILERS, path.name):
            found.setdefault(str(path.resolve()), str(path))
    return sorted(found.values(), key=lambda path: ("clang" in path, [-int(n) for n in re.findall(r"\d+", path)]))


def build(compiler: str, folder: Path) -> Path:
    """The library with the flags of CMakeLists.txt, but without threads and CUDA.

    Raises:
        RuntimeError: with what the compiler wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flags = re.findall(r"echo_kernels PRIVATE (-f[^)]*)\)", (KERNELS.parents[1] / "CMakeLists.txt").read_text())[0]
    common = [compiler, "-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", *flags.split()]
    common += [f"-I{KERNELS / 'include'}", f"-I{KERNELS}"]
    objects = {source: folder / f"{source.stem}.o" for source in [*KERNELS.glob("*.cc"), *KERNELS.glob("cpu/*.cc")]}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda item: _run(*common, "-c", str(item[0]), "-o", str(item[1])), objects.items()))
    made = folder / "libecho_kernels.so"
    _run(compiler, "-shared", "-Wl,-z,defs", "-o", str(made), *map(str, objects.values()))
    return made


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")


class Build:
    """A library at a level: it asks for the level once, so each has a copy of its own."""

    def __init__(self, compiler: str, made: Path, level: str) -> None:
        copied = shutil.copy(made, made.with_name(f"{level}.so"))
        os.environ["ECHO_DEBUG"] = f"level={level}"
        self.compiler, self.opened = compiler, ctypes.CDLL(str(copied))
        self.level = function(self.opened, "echo_kernels_level", ctypes.c_char_p)().decode()
        self.call = function(self.opened, "echo_cpu_call", ctypes.c_int, ctypes.POINTER(kernel_calls.EchoCall))
        self.workspace = function(
            self.opened, "echo_cpu_workspace", ctypes.c_size_t, ctypes.POINTER(kernel_calls.EchoCall)
        )

    def seconds(self, raw: kernel_calls.EchoCall) -> float:
        """Of one call.

        Raises:
            RuntimeError: the call is wrong.
        """
        needed = self.workspace(ctypes.byref(raw))
        room = np.empty(needed + 64, np.uint8)
        raw.workspace, raw.workspace_bytes = room.ctypes.data + -room.ctypes.data % 64, needed
        started = time.perf_counter()
        failed = self.call(ctypes.byref(raw))
        taken = time.perf_counter() - started
        if failed:
            raise RuntimeError(function(self.opened, "echo_kernels_error", ctypes.c_char_p)().decode())
        return taken


def calls_of(case: Case) -> dict[str, tuple[kernel_calls.EchoCall, Any]]:
    """A kernel's call and its gradient's, packed, with what they point to."""
    generator = np.random.default_rng(0)
    inputs = draw(case, "float32", generator)
    expected = getattr(reference, case.kernel)(*inputs, **case.params)
    types = [tensor.type or "float32" for tensor in TABLE[case.kernel].outputs]
    outputs = [np.zeros(np.shape(array), dtype) for array, dtype in zip(expected, types)]
    unwanted = TABLE[case.kernel].without_gradient
    heads = [
        None if number in unwanted else generator.normal(size=array.shape).astype(np.float32)
        for number, array in enumerate(outputs)
    ]
    gradients = [None if x is None or x.dtype != np.float32 else np.zeros_like(x) for x in inputs]
    arguments = [*heads, *inputs, *outputs]
    params = list(case.params.values())
    return {
        case.kernel: (kernel_calls.raw_call(case.kernel, inputs, outputs, None, params), (inputs, outputs)),
        f"{case.kernel}_grad": (
            kernel_calls.raw_call(f"{case.kernel}_grad", arguments, gradients, None, params), (arguments, gradients),
        ),
    }  # fmt: skip


def measure(builds: list[Build], rounds: int) -> list[dict[str, Any]]:
    """A row for each kernel, level and compiler; "of_first" is the time as a part of the first compiler's."""
    rows = []
    for case in CASES:
        for kernel, (raw, _) in calls_of(case).items():
            least = [min(build.seconds(raw) for _ in range(3)) for build in builds]
            for _ in range(rounds):
                least = [min(before, build.seconds(raw)) for before, build in zip(least, builds)]
            first = {build.level: seconds for build, seconds in reversed(list(zip(builds, least)))}
            rows += [
                {
                    "kernel": kernel, "level": build.level, "compiler": build.compiler,
                    "microseconds": seconds * 1e6, "of_first": seconds / first[build.level],
                }
                for build, seconds in zip(builds, least)
            ]  # fmt: skip
    return rows


def name_of(compiler: str) -> str:
    """Name and version."""
    text = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    version = re.search(r"\d+\.\d+\.\d+", text)
    return f"{'clang' if 'clang' in text else 'gcc'} {version.group() if version else text}"


def main() -> None:
    """Builds, measures, prints and saves."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=40, help="calls of which the fastest counts")
    rounds = options.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="echo-compilers-") as folder:
        builds = []
        for number, compiler in enumerate(compilers()):
            made = build(compiler, Path(folder) / str(number))
            builds += [Build(name_of(compiler), made, level) for level in LEVELS]
        rows = measure(builds, rounds)
    for level in dict.fromkeys(row["level"] for row in rows):
        print(f"{level}: time as a part of that of {builds[0].compiler}, median and worst of the kernels")
        for compiler in dict.fromkeys(build.compiler for build in builds):
            ratios = {r["kernel"]: r["of_first"] for r in rows if (r["level"], r["compiler"]) == (level, compiler)}
            worst = max(ratios, key=lambda kernel: ratios[kernel])
            print(f"  {compiler:14} {np.median(list(ratios.values())):5.2f} {ratios[worst]:5.2f} ({worst})")
    print(f"wrote {save('cpu_compilers', rows)}")


if __name__ == "__main__":
    main()
