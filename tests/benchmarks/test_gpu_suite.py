"""The checks for a GPU as far as they run without one: kernels on the emulated device, torch on the CPU."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Iterator

import pytest

from benchmarks import gpu_cases, gpu_plot, gpu_routes, gpu_suite
from benchmarks.gpu_clock import Clock
from benchmarks.gpu_library import build_library
from benchmarks.gpu_sizes import Loss, Recurrent, Scores, Sizes
from benchmarks.gpu_suite import STEPS, Bench, Step
from echo.kernels.library import kernels_library
from tests.benchmarks.on_the_cpu import OnTheCpu
from tests.kernels.cuda_emulation import KERNELS, Emulated, built, compile_kernels

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


@pytest.fixture
def emulated() -> Emulated:
    return Emulated(built().driver, built().kernels)


@pytest.mark.slow
def test_every_kernel_is_within_its_allowed_error(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [case for case in gpu_suite.cases_of(1) if max(case.dims.values()) < 50]
    monkeypatch.setattr(gpu_suite, "cases_of", lambda scale: few)
    rows = gpu_suite.check_all(emulated, 7, Clock(1000))
    assert {row["kernel"] for row in rows} == {case.kernel for case in few}
    assert all(0 <= row["worst_error_of_allowed"] <= 1 for row in rows)


def test_a_wrong_kernel_is_named(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Emulated):
        def __init__(self) -> None:
            self.driver = emulated.driver

        def fetch(self, array: Any) -> Any:
            return array + array.dtype.type(1)

    monkeypatch.setattr(gpu_suite, "cases_of", lambda scale: gpu_cases.cases_of(1)[:1])
    rows = gpu_suite.check_all(Wrong(), 7, Clock(1000))
    assert [row["failed"].partition(" by ")[0] for row in rows] == [
        "lstm_cell B=3 H=1, float32, seed 7, number 0: AssertionError: lstm_cell: output 0 is off",
        "lstm_cell B=3 H=1, float16, seed 7, number 1: AssertionError: lstm_cell: output 0 is off",
    ]


@pytest.fixture(scope="module")
def step_by_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("step_by_step"), "-O0", "-DECHO_CUDA_STEP_BY_STEP")


ROUTES = Sizes(routes=(Recurrent(12, 5, 6), Recurrent(20, 3, 4)), repetitions=2)


@pytest.mark.slow
@pytest.mark.every(2)
def test_both_routes_give_the_same_bits(emulated: Emulated, step_by_step: Path) -> None:
    emulated.driver.fake_new_contexts()
    emulated.launches()
    rows = list(gpu_routes.route_rows(emulated, ROUTES, Clock(1000), 3, step_by_step))
    assert emulated.launches().count("c") == len(rows) * 2 * ROUTES.repetitions
    assert [(row["H"], row["dtype"]) for row in rows] == [(h, t) for h in (12, 20) for t in ("float32", "float16")]
    assert [row for row in rows if "failed" in row] == []


@pytest.mark.slow
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
        rows = list(gpu_routes.route_rows(emulated, ROUTES, Clock(1000), 3, step_by_step))
    finally:
        emulated.load(built().kernels)
    assert all("of both routes differ in run" in row["failed"] for row in rows)


def bench(device: Any, sizes: Sizes = Sizes(), **paths: Path) -> Bench:  # noqa: B008
    shipped = Path(kernels_library()._name)
    return Bench(device, sizes, 1, **{"fused": shipped, "step_by_step": shipped, **paths}, scale=1)


class Machine:
    """A device that computes nothing, and whose clock goes on by a second with each item of a step."""

    def __init__(self) -> None:
        self.time = 0.0
        self.torch = types.SimpleNamespace(__version__="none")

    def describe(self) -> dict[str, Any]:
        return {"gpu": "none"}

    def now(self) -> float:
        return self.time

    def step(self, name: str, share: float, items: int, fails: bool = False) -> Step:
        def rows(_: Bench, clock: Clock) -> Iterator[dict[str, Any]]:
            for item in clock.take(range(items), lambda item: f"item {item}"):
                self.time += 1
                yield {"section": name, "item": item}
            if fails:
                raise RuntimeError("no such thing")

        return Step(name, share, rows)


def test_steps_share_the_seconds_and_say_what_they_left_out(tmp_path: Path) -> None:
    """Later steps get the time that a step does not need."""
    machine = Machine()
    steps = [machine.step("one", 1, 2), machine.step("two", 1, 100), machine.step("three", 2, 100)]
    made = gpu_suite.run(bench(machine), 40, tmp_path, steps, machine.now)
    ends = [row for row in json.loads(made.read_text())["rows"] if "allowed" in row]
    assert [(row["section"], row["allowed"], row["seconds"]) for row in ends] == [
        ("one", 10, 2), ("two", pytest.approx(38 / 3), 12), ("three", 26, 26)
    ]  # fmt: skip
    assert ends[0]["left_out"] == []
    assert ends[2]["left_out"] == [f"item {number}" for number in range(26, 100)]
    assert machine.time == 40


def test_a_step_that_fails_ends_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine()
    steps = [machine.step("one", 1, 1, fails=True), machine.step("two", 1, 1)]
    rows = json.loads(gpu_suite.run(bench(machine), 10, tmp_path, steps, machine.now).read_text())["rows"]
    assert rows[0] == {"section": "one", "item": 0}
    assert "no such thing" in rows[1]["failed"]
    assert rows[3] == {"section": "two", "item": 0}
    assert "no such thing" in capsys.readouterr().out


def test_results_are_written_after_each_step(tmp_path: Path) -> None:
    machine = Machine()
    written = []

    def look(_: Bench, clock: Clock) -> Iterator[dict[str, Any]]:
        written.append({row["section"] for row in json.loads((tmp_path / "gpu_check.json").read_text())["rows"]})
        yield {"section": "look"}

    gpu_suite.run(bench(machine), 10, tmp_path, [machine.step("one", 1, 1), Step("look", 1, look)], machine.now)
    assert written == [{"one"}]


def test_the_most_telling_steps_come_first() -> None:
    names = [step.name for step in STEPS]
    assert names[:4] == ["correctness", "routes", "layer", "parts"]
    assert len(set(names)) == len(names)
    assert {"sanitizer", "scores", "loss", "attention", "deepbench lstm", "deepbench gru", "flashrnn"} < set(names)
    assert names[-2:] == ["compiled", "compiled scores"], "they take longest"


def test_correctness_begins_with_each_kernel() -> None:
    cases = [(case, dtype) for case in gpu_suite.cases_of(1) for dtype in ("float32", "float16")]
    ordered = gpu_suite.spread(cases)
    assert sorted(number for number, _, _ in ordered) == list(range(len(cases)))
    kinds = {(case.kernel, dtype) for case, dtype in cases}
    assert {(case.kernel, dtype) for _, case, dtype in ordered[: len(kinds)]} == kinds
    assert all(min(case.dims.values()) > 0 for _, case, _ in ordered[: len(kinds)])
    assert all(cases[number] == (case, dtype) for number, case, dtype in ordered)


@pytest.mark.slow
def test_plot_with_and_without_rows_writes_a_picture(tmp_path: Path) -> None:
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


TINY = Sizes(
    rows=32, wide=16, layers=(Recurrent(16, 4, 3), Recurrent(12, 3, 2)), routes=(Recurrent(16, 4, 3),), repetitions=2,
    parts=(Recurrent(16, 4, 4),), attentions=((2, 5, 8),), energy=(Recurrent(16, 4, 3),),
    deepbench_lstm=(Recurrent(8, 2, 3),),
    deepbench_gru=(Recurrent(8, 2, 3), Recurrent(8, 2, 1)), flashrnn=(Recurrent(8, 2, 3), Recurrent(4, 2, 3, 2)),
    scores=(Scores(2, 3, 4, 8),), losses=(Loss(6, 4, 9),),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # in torch.compile
def test_all_steps(emulated: Emulated, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("the emulated driver is no driver for this torch; needs one for CPUs")
    fused, step_by_step = gpu_suite.built(tmp_path / "build")
    whole = bench(OnTheCpu(), TINY, fused=fused, step_by_step=step_by_step)
    result = json.loads(gpu_suite.run(whole, 600, tmp_path).read_text())
    assert {"benchmark", "date", "commit", "machine", "versions", "seed", "rows"} == set(result)
    assert [row for row in result["rows"] if row.get("left_out")] == []
    rows = [row for row in result["rows"] if "left_out" not in row]
    assert [row for row in rows if "failed" in row] == []
    times = [(name, value) for row in rows for name, value in row.items() if name.endswith(("_us", "_ms"))]
    assert {name for name, value in times if not isinstance(value, float)} == {"barrier_us"}, "it needs a GPU"
    assert {row["section"] for row in rows} == {step.name for step in STEPS}
    gpu_plot.plot(rows, tmp_path / "gpu_check.png")
    assert (tmp_path / "gpu_check.png").is_file()
