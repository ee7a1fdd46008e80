"""The CUDA launcher before it launches: drivers, contexts and devices, and its errors when one is wrong."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest

from benchmarks.gpu_cases import Case, check, check_forward, draw
from benchmarks.gpu_library import build_library, using_library
from echo.errors import KernelError
from echo.kernels import library
from tests.kernels.cuda_emulation import DRIVER_VARIABLE, Emulated, built, kept
from tests.support import kernel_calls

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

HOST, DEVICE, BLAS_ROOM = 1, 2, 1 << 20
LOSS = {"grad_scale": 1.0, "use_ignore": 0, "ignore_label": -1, "normalization": 0, "smooth_alpha": 0.0}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    monkeypatch.setenv("ECHO_DEBUG", "cublas=0")  # a CUDA wheel has loaded one
    emulated = Emulated(built().driver, built().kernels)
    emulated.launches()
    yield emulated
    emulated.set(init=0, devices=2, module=0, multiprocessors=40, cooperative=1, fixed=0, refused=0, fails=0)
    emulated.driver.fake_forget_places()


def arrays() -> tuple[list[Any], list[Any]]:
    return [np.zeros((2, 12), np.float32), np.zeros((2, 3), np.float32)], [np.zeros((2, 3), np.float32) for _ in "hc"]


def run(inputs: list[Any], outputs: list[Any]) -> None:
    kernel_calls.call("lstm_cell", inputs, outputs, backend="cuda")


def put(backend: Emulated, array: Any, memory: int, device: int) -> None:
    backend.driver.fake_place(array.ctypes.data, array.nbytes, memory, device)


@pytest.mark.parametrize("memory", [0, HOST])
def test_an_array_on_the_host(backend: Emulated, memory: int) -> None:
    inputs, outputs = arrays()
    put(backend, inputs[1], memory, 0)
    with pytest.raises(KernelError, match="lstm_cell: input 1 is in the memory of the host, expected that of a CUDA"):
        run(inputs, outputs)
    assert backend.launches() == ""


def test_two_devices_in_a_call(backend: Emulated) -> None:
    inputs, outputs = arrays()
    put(backend, outputs[0], DEVICE, 1)
    with pytest.raises(KernelError, match="output 0 is on device 1, expected 0 as the arrays before it"):
        run(inputs, outputs)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_context_is_that_of_the_arrays(backend: Emulated, before: int) -> None:
    """A thread's own context comes back after the call; one that had none keeps the device's."""
    backend.driver.fake_context(before)
    inputs, outputs = arrays()
    for array in (*inputs, *outputs):
        put(backend, array, DEVICE, 1)
    run(inputs, outputs)
    assert backend.launches() == "k"
    assert backend.driver.fake_current_context() == (before or 2)


def test_a_failing_launch(backend: Emulated) -> None:
    backend.set(module=700)
    backend.driver.fake_new_contexts()
    with pytest.raises(KernelError, match=r"loading lstm_cell_f32: FAKE_ERROR \(made up\)"):
        run(*arrays())
    backend.set(module=0)
    run(*arrays())  # tried again


def test_kernels_are_loaded_when_they_are_first_asked_for(backend: Emulated) -> None:
    backend.driver.fake_new_contexts()
    for _ in range(2):
        run(*arrays())
    case = Case("lstm_layer", {"T": 4, "B": 3, "I": 5, "H": 6}, {"reverse": 0})
    check_forward(case, "float32", backend, draw(case, "float32", np.random.default_rng(5)))
    assert backend.loads() == ["lstm_cell_f32", "gemm_inputs_small_f32", "lstm_small_steps_f32"]


def test_loading_a_kernel_blocks_no_other_launch(backend: Emulated) -> None:
    """Neither those who ask for another kernel, nor those who ask for the same on another device."""
    backend.driver.fake_new_contexts()
    backend.driver.fake_hold(b"relu_f32")
    x, bits, here, there = np.ones(3, np.float32), np.zeros(1, np.uint8), *np.zeros((2, 3), np.float32)
    loading = threading.Thread(target=kernel_calls.call, args=("relu", [x], [here, bits]), kwargs={"backend": "cuda"})
    loading.start()
    assert backend.driver.fake_holds()
    run(*arrays())
    on_another = [x.copy(), there, bits.copy()]
    for array in on_another:
        put(backend, array, DEVICE, 1)
    kernel_calls.call("relu", on_another[:1], on_another[1:], backend="cuda")
    assert backend.launches() == "kk"
    assert (here.all(), there.all()) == (False, True)
    backend.driver.fake_hold(b"")
    loading.join()
    assert here.all()


def test_an_old_driver(backend: Emulated) -> None:
    backend.set(module=222, version=8000)
    backend.driver.fake_new_contexts()
    with pytest.raises(KernelError, match=r"supports CUDA 8\.0 and refuses the kernels, .* 9\.0.*compiler's log"):
        run(*arrays())


@pytest.mark.parametrize("cooperative", [0, 1])
def test_a_device_that_is_ready(backend: Emulated, cooperative: int) -> None:
    """Both kinds of launches are tried."""
    backend.set(cooperative=cooperative)
    backend.driver.fake_new_contexts()
    assert library.why_not_on_cuda(0) == ""
    assert backend.launches() == ("kc" if cooperative else "k")
    assert backend.loads() == ["sum_rows_f32"]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_context_after_that_question(backend: Emulated, before: int) -> None:
    backend.driver.fake_context(before)
    assert library.why_not_on_cuda(1) == ""
    assert backend.driver.fake_current_context() == (before or 2)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"module": 222}, "refuses the kernels"),
        ({"module": 700}, "loading sum_rows_f32: FAKE_ERROR"),
        ({"fails": 719}, "launching sum_rows_f32: FAKE_FAILED"),
    ],
    ids=str,
)
def test_a_device_that_is_not_ready(backend: Emulated, settings: dict[str, int], reason: str) -> None:
    backend.set(**settings)
    backend.driver.fake_new_contexts()
    assert reason in library.why_not_on_cuda(0)
    backend.set(module=0, fails=0)
    assert library.why_not_on_cuda(0) == "", "asked again"


def test_a_device_that_is_not_there(backend: Emulated) -> None:
    assert library.why_not_on_cuda(9) == "opening a device: FAKE_ERROR (made up)"


def test_a_refused_launch_of_all_blocks(backend: Emulated, capfd: pytest.CaptureFixture[str]) -> None:
    """Layers go step by step from then on; one line says so, of each device."""
    backend.driver.fake_new_contexts()
    case = Case("lstm_layer", {"T": 4, "B": 3, "I": 5, "H": 6}, {"reverse": 0})
    check(case, "float32", backend, np.random.default_rng(5))
    assert backend.launches().count("c") == 2
    backend.set(refused=720)
    for _ in range(2):
        check(case, "float32", backend, np.random.default_rng(5))
        assert backend.launches().count("k") > 2 * 4
    warned = capfd.readouterr().err
    assert warned.count("\n") == 1
    kind = "lstm_small_steps_f32 with all blocks at once (FAKE_ERROR)"
    assert warned.startswith(f"echo: CUDA device 0 does not launch {kind}")
    backend.set(refused=0)
    check(case, "float32", backend, np.random.default_rng(5))
    assert backend.launches().count("c") == 0, "it is not asked again"


def test_a_device_that_refuses_is_ready(backend: Emulated, capfd: pytest.CaptureFixture[str]) -> None:
    backend.driver.fake_new_contexts()
    backend.set(refused=801)
    assert [library.why_not_on_cuda(0) for _ in range(2)] == ["", ""]
    assert capfd.readouterr().err.count("step by step") == 1


@pytest.mark.every(2)
@pytest.mark.parametrize("fixed", [0, 5000])
def test_shared_memory_is_asked_for_once(backend: Emulated, fixed: int) -> None:
    """All threads share a function: set before each launch, its attribute could change before another thread's."""
    backend.set(fixed=fixed, multiprocessors=200)
    backend.driver.fake_new_contexts()
    for hidden in (400, 30, 400):  # 400 units ask for more than the 48 KB that need no asking
        case = Case("lstm_layer", {"T": 2, "B": 1, "I": 1, "H": hidden}, {"reverse": 0})
        check_forward(case, "float32", backend, draw(case, "float32", np.random.default_rng(3)))
    assert backend.launches().count("c") == 3
    assert backend.driver.fake_times_set() == 1


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("", "there is no NVIDIA driver: libcuda.so.1"),
        ("driver.fake_set(b'init', 100)", "the NVIDIA driver finds no CUDA device"),
        ("driver.fake_set(b'devices', 0)", "the NVIDIA driver finds no CUDA device"),
        ("driver.fake_set(b'init', 999)", "starting the NVIDIA driver: FAKE_ERROR (made up)"),
    ],
)
def test_no_driver_or_no_device(setup: str, message: str) -> None:
    """In a process of its own: the driver is opened once."""
    if not setup and ctypes.util.find_library("cuda"):
        pytest.skip("this machine has a driver")
    driver = str(built().driver) if setup else "libcuda.so.1"
    code = f"""
import ctypes
import numpy as np
from echo.errors import KernelError
from tests.support import kernel_calls
if {setup!r}:
    driver = ctypes.CDLL({driver!r})
    {setup or "pass"}
try:
    kernel_calls.call("relu", [np.ones(3, np.float32)], [np.ones(3, np.float32), np.ones(1, np.uint8)], backend="cuda")
except KernelError as error:
    print(error)
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": "", DRIVER_VARIABLE: driver}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert message in done.stdout


def test_a_workspace_that_is_missing_or_small(backend: Emulated) -> None:
    assert kernel_calls.workspace_bytes("lstm_cell", *arrays(), backend="cuda") == 0
    inputs = [np.ones((5, 3), np.float32), np.ones((5, 3), np.float32), np.ones(3, np.float32), None, None]
    outputs = [np.ones((5, 3), np.float32), np.ones(3, np.float32), np.ones(3, np.float32)]
    kernel, params = "layer_norm_grad", [1e-5]
    needed = kernel_calls.workspace_bytes(kernel, inputs, outputs, params=params, backend="cuda")
    with pytest.raises(KernelError, match=f"expected a workspace of {needed} bytes, got none"):
        kernel_calls.call(kernel, inputs, outputs, params=params, backend="cuda")
    small = np.zeros(needed - 1, np.uint8)
    with pytest.raises(KernelError, match=f"expected a workspace of {needed} bytes, got {needed - 1}"):
        kernel_calls.call(kernel, inputs, outputs, params=params, backend="cuda", workspace=small)


@pytest.fixture(scope="module")
def bounded() -> Path:
    """The library as `make gpu-check` builds it, but with room for 800 gates, or for 128 rows of 50 scores, only."""
    flags = ("-O0", "-DECHO_GATES_BYTES=3200", "-DECHO_SCORES_BYTES=25600")
    made = kept(lambda folder: build_library(folder, *flags), "library", flags) / "libecho_kernels.so"
    with using_library(made):
        Emulated(built().driver, built().kernels)  # whose driver is this library's, too
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "rows"), [(50, 128), (51, 64), (900, 64)])
def test_scores_in_pieces(backend: Emulated, bounded: Path, classes: int, rows: int) -> None:
    """Of float16: whole tiles of rows, one at least; those of float32 are where the probabilities will be."""
    case = Case("softmax_output", {"N": 150, "I": 6, "V": classes}, LOSS)
    with using_library(bounded):
        for dtype, pieces, room in (("float32", 1, 0), ("float16", -(-150 // rows), rows * classes * 4)):
            inputs = draw(case, dtype, np.random.default_rng(2))
            prob = [np.zeros((150, classes), dtype)]
            params = list(LOSS.values())
            found = kernel_calls.workspace_bytes("softmax_output", inputs, prob, params=params, backend="cuda")
            assert found == BLAS_ROOM + -(-room // 256) * 256
            backend.launches()
            check_forward(case, dtype, backend, inputs)
            assert backend.launches() == 2 * pieces * "k"


@pytest.mark.every(6)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("cooperative", [0, 1])
def test_a_layer_in_pieces(backend: Emulated, bounded: Path, dtype: str, reverse: int, cooperative: int) -> None:
    """Seven steps of 200 gates: four at once, then three. Or eight: two times four."""
    backend.set(cooperative=cooperative)
    backend.driver.fake_new_contexts()
    with using_library(bounded):
        backend.launches()
        for steps in (7, 8):
            case = Case("lstm_layer", {"T": steps, "B": 5, "I": 6, "H": 10}, {"reverse": reverse})
            check(case, dtype, backend, np.random.default_rng(2))
            assert backend.launches().count("c") == (4 if cooperative else 0)
    backend.set(cooperative=1)


@pytest.mark.parametrize(("classes", "fits"), [(2**31 - 129, True), (2**31 - 128, False)])
def test_too_many_classes_raise_kernel_error(classes: int, fits: bool) -> None:
    """The arrays are room that nothing touches."""
    w, prob = np.empty((classes, 1), np.float16), np.empty((1, classes), np.float16)
    inputs, params = [np.ones((1, 1), np.float16), w, None, np.zeros(1, np.float32)], list(LOSS.values())
    if fits:
        assert (
            kernel_calls.workspace_bytes("softmax_output", inputs, [prob], params=params, backend="cuda") > 4 * classes
        )
        return
    with pytest.raises(KernelError, match=rf"softmax_output: {classes} classes are more .* fewer than 2\^31 - 128"):
        kernel_calls.workspace_bytes("softmax_output", inputs, [prob], params=params, backend="cuda")
