"""The checks for a GPU as far as they run without one: kernels on the emulated device, torch on the CPU."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
import timeit
from pathlib import Path
from typing import Any, Iterator

import pytest

from benchmarks import gpu_cases, gpu_plot, gpu_routes, gpu_suite, gpu_timing
from benchmarks.gpu_device import Device
from benchmarks.gpu_library import build_library
from tests.kernels.cuda_emulation import KERNELS, Emulated, built, compile_kernels

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


@pytest.fixture
def emulated() -> Emulated:
    return Emulated(built().driver, built().kernels)


def test_correctness(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [case for case in gpu_suite.cases_of(1) if max(case.dims.values()) < 50]
    monkeypatch.setattr(gpu_suite, "cases_of", lambda scale: few)
    rows = gpu_suite.check_all(emulated, 7, gpu_timing.Clock(1000))
    assert {row["kernel"] for row in rows} == {case.kernel for case in few}
    assert all(0 <= row["worst_error_of_allowed"] <= 1 for row in rows)


def test_a_wrong_kernel_is_named(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Emulated):
        def __init__(self) -> None:
            self.driver = emulated.driver

        def fetch(self, array: Any) -> Any:
            return array + array.dtype.type(1)

    monkeypatch.setattr(gpu_suite, "cases_of", lambda scale: gpu_cases.cases_of(1)[:1])
    rows = gpu_suite.check_all(Wrong(), 7, gpu_timing.Clock(1000))
    assert [row["failed"].partition(" by ")[0] for row in rows] == [
        "lstm_cell B=3 H=1, float32, seed 7, number 0: AssertionError: lstm_cell: output 0 is off",
        "lstm_cell B=3 H=1, float16, seed 7, number 1: AssertionError: lstm_cell: output 0 is off",
    ]


@pytest.fixture(scope="module")
def step_by_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("step_by_step"), "-O0", "-DECHO_CUDA_STEP_BY_STEP")


ROUTES = gpu_timing.Sizes(routes=((12, 5, 6), (20, 3, 4)), repetitions=2)


@pytest.mark.every(2)
def test_both_routes_give_the_same_bits(emulated: Emulated, step_by_step: Path) -> None:
    emulated.driver.fake_new_contexts()
    emulated.launches()
    rows = list(gpu_routes.route_rows(emulated, ROUTES, gpu_timing.Clock(1000), 3, step_by_step))
    assert emulated.launches().count("c") == len(rows) * 2 * ROUTES.repetitions
    assert [(row["H"], row["dtype"]) for row in rows] == [(h, t) for h in (12, 20) for t in ("float32", "float16")]
    assert [row for row in rows if "failed" in row] == []


def test_a_barrier_that_does_not_wait_is_found(emulated: Emulated, step_by_step: Path, tmp_path: Path) -> None:
    """The loop of the grid barrier gone, as an assembler may remove it."""
    for path in (KERNELS / "cuda").glob("*.*h"):
        shutil.copy(path, tmp_path)
    source = (tmp_path / "device.cuh").read_text()
    loop = "while (fresh(arrived) < goal) ECHO_SPIN();"
    assert loop in source
    (tmp_path / "device.cuh").write_text(source.replace(loop, ""))
    racing = compile_kernels(tmp_path, built().fibers, tmp_path / "lstm.cuh", "racing", "-Wno-error")
    emulated.load(racing)
    try:
        rows = list(gpu_routes.route_rows(emulated, ROUTES, gpu_timing.Clock(1000), 3, step_by_step))
    finally:
        emulated.load(built().kernels)
    assert all("of both routes differ in run" in row["failed"] for row in rows)


def test_a_section_that_fails_ends_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"section": "memory", "kernel": "relu"}
        raise RuntimeError("no such thing")

    found = gpu_suite.collect("memory", rows(), gpu_timing.Clock(1))
    assert found[0] == {"section": "memory", "kernel": "relu"}
    assert "no such thing" in found[1]["failed"]
    assert "no such thing" in capsys.readouterr().out


def test_clock() -> None:
    clock = gpu_timing.Clock(0.05)
    taken = []
    for item in clock.take(range(10)):
        taken.append(item)
        time.sleep(0.02)
    assert 1 <= len(taken) <= 4
    assert clock.left_out == 10 - len(taken)


def test_plot(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"section": "memory", "kernel": "relu", "dtype": "float32", "forward_of_copy": 0.9, "gradient_of_copy": 0.8},
        {"section": "memory", "left_out": 3},
    ]
    for hidden, batch in itertools.product((256, 512), (16, 64)):
        row: dict[str, Any] = {"section": "layer", "dtype": "float32", "H": hidden, "B": batch, "T": 35}
        rows.append({**row, "ours_ms": 2.0, "step_by_step_ms": 3.0, "unfused_ms": "OutOfMemoryError", "cudnn_ms": 1.5})
    rows[-1]["cudnn_ms"] = "no cuDNN here"
    gpu_plot.plot(rows, tmp_path / "picture.png")
    gpu_plot.plot([], tmp_path / "empty.png")
    assert (tmp_path / "picture.png").stat().st_size > (tmp_path / "empty.png").stat().st_size > 1000


def test_needs_neither_mxnet_nor_an_installation() -> None:
    """As `make gpu-check` starts it, with every module away that a machine for GPU checks may lack."""
    code = """
import sys
class Away:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mxnet", "rich", "pynvml", "highspy"):
            raise ImportError(name)
sys.meta_path.insert(0, Away())
sys.path.insert(0, ".")
from benchmarks import gpu_suite
sys.argv = ["gpu_check.py", "--help"]
gpu_suite.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "--seconds" in done.stdout


class OnTheCpu(Device):
    """torch on the CPU, and the emulated kernels on its arrays."""

    def __init__(self) -> None:
        super().__init__("cpu")

    def describe(self) -> dict[str, Any]:
        return {"gpu": "emulated"}

    def as_argument(self, array: Any) -> Any:
        return array.detach().numpy()

    def stream(self) -> int:
        return 0

    def wait(self) -> None:
        pass

    def once(self, function: Any) -> float:
        return timeit.timeit(function, number=1)

    def seconds(self, function: Any, rounds: int = 15, limit: float = 1.0) -> float:
        return super().seconds(function, 2, 0.0)


@pytest.mark.slow
def test_all_sections(emulated: Emulated, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sizes = gpu_timing.Sizes(32, 16, ((16, 4, 3), (12, 3, 2)), ((16, 4, 3),), 2, ((2, 5, 8),))
    made = gpu_suite.run(OnTheCpu(), tmp_path / "build", 600, 1, sizes, tmp_path, scale=1)
    result = json.loads(made.read_text())
    assert {"benchmark", "date", "commit", "machine", "versions", "seed", "rows"} == set(result)
    rows = [row for row in result["rows"] if "left_out" not in row]
    assert len(rows) == len(result["rows"])
    assert [row for row in rows if "failed" in row] == []
    times = [value for row in rows for name, value in row.items() if name.endswith(("_us", "_ms"))]
    assert all(isinstance(value, float) for value in times), times
    assert {row["section"] for row in rows} == {"correctness", "routes", *gpu_suite.SHARES}
    assert made.with_suffix(".png").is_file()
