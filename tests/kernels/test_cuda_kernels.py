"""Every CUDA kernel, emulated, against the float64 reference."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest

from benchmarks.gpu_cases import LAYERS, Case, cases_of, check, draw
from tests.kernels.attention_forms import FORMS, check_form
from tests.kernels.cases import check_case, check_draws
from tests.kernels.cases import draw as draw_case
from tests.kernels.cuda_emulation import KERNELS, Emulated, built, compile_fibers, compile_kernels, contraction
from tests.kernels.large_scores import SIZES, VARIANTS, check_cancelled_scores, check_large_scores
from tests.kernels.table import SMALL, SPECS
from tests.support import reference
from tests.support.kernel_calls import ADD, SKIP, WRITE

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

HOST = 1
CASES = cases_of(1)
SCHEDULED = ("attention", "mlp_score", "softmax_output")
LAYER = Case("lstm_layer", {"T": 5, "B": 3, "I": 7, "H": 33}, {"reverse": 0})
STEPPING = [
    case
    for layer, params in LAYERS.items()
    for case in (
        Case(layer, {"T": 5, "B": 3, "I": 7, "H": 33}, {**params, "reverse": 0}),
        Case(layer, {"T": 4, "B": 65, "I": 2, "H": 12}, {**params, "reverse": 1}),
    )
]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    monkeypatch.setenv("ECHO_DEBUG", "cublas=0")  # a CUDA wheel has loaded one
    emulated = Emulated(built().driver, built().kernels)
    emulated.launches()
    yield emulated
    emulated.set(cooperative=1, occupancy=1, shared=99 << 10, multiprocessors=40, seed=0)
    emulated.driver.fake_forget_places()


@pytest.mark.every(13)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_reference(backend: Emulated, case: Case, dtype: str) -> None:
    seed = CASES.index(case)
    backend.set(seed=1000 * seed)
    check(case, dtype, backend, np.random.default_rng(seed))


class OnDevice:
    """An array as torch hands it over: one that is empty is at the address 0."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape
        address = array.ctypes.data if array.size else 0
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (address, False), "version": 3
        }  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", [case for case in CASES if 0 in case.dims.values()], ids=str)
def test_empty_arrays_that_are_nowhere(
    backend: Emulated, monkeypatch: pytest.MonkeyPatch, case: Case, dtype: str
) -> None:
    """They are there all the same, also where two are wanted together; no device is asked where they are."""
    backend.driver.fake_place(0, 4096, HOST, 0)
    monkeypatch.setattr(backend, "place", lambda array: None if array is None else OnDevice(array))
    monkeypatch.setattr(backend, "fetch", lambda placed: placed.array)
    check(case, dtype, backend, np.random.default_rng(0))


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.dims.get("H") == 1 and max(case.dims.values()) < 30], ids=str
)
def test_sums_that_cancel(backend: Emulated, case: Case, dtype: str) -> None:
    """The sums are 0, or nearly, plus a GPU's roundings: they are compared with the summands."""
    for seed in range(4):
        assert check(case, dtype, backend, np.random.default_rng(seed)) < 0.8


def test_products_and_sums_are_rounded_once(tmp_path: Path) -> None:
    """As on a GPU: some gradients are 0, but for that."""
    if not contraction():
        pytest.skip(
            "this processor rounds products by themselves: rests of sums that cancel, as on a GPU, are not seen"
        )
    source = tmp_path / "once.cuh"
    source.write_text("""
        #include "device.cuh"
        extern "C" __attribute__((visibility("default"))) float once(float a, float b, float c) { return a * b + c; }
    """)
    made = ctypes.CDLL(str(compile_kernels(tmp_path, built().fibers, source, "once")))
    made.once.restype, made.once.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    x = 1 + 2.0**-12
    assert made.once(x, x, -(1 + 2.0**-11)) == 2.0**-24, "which is lost where the product is rounded"


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_kernel(backend: Emulated, name: str) -> None:
    check_case(draw_case(name, SMALL[name]), backend.run)


ONE_OF_EACH = list({case.kernel: case for case in [*CASES, LAYER] if all(case.dims.values())}.values())


@pytest.mark.every(23)
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.kernel)
def test_gradients_are_written_added_and_skipped(backend: Emulated, case: Case, number: int) -> None:
    """One gradient alone, then all but one, added."""
    if number >= len(draw(case, "float32", np.random.default_rng(0))):
        return
    only: Callable[[int], int] = lambda i: WRITE if i == number else SKIP  # noqa: E731
    others: Callable[[int], int] = lambda i: SKIP if i == number else ADD  # noqa: E731
    for seed, req in enumerate((only, others)):
        check(case, "float32", backend, np.random.default_rng(seed), req)


@pytest.mark.every(6)
@pytest.mark.parametrize("case", [*STEPPING[::2], *(case for case in ONE_OF_EACH if case.kernel in SCHEDULED)], ids=str)
def test_random_schedules(backend: Emulated, case: Case) -> None:
    """The results are the same bits whatever the order in which warps and blocks run: nothing is added atomically."""
    inputs = draw(case, "float32", np.random.default_rng(1))
    expected = getattr(reference, case.kernel)(*inputs, **case.params)
    heads = [np.ones_like(output, dtype=np.float32) for output in expected]
    results: list[list[Any]] = []
    for seed in (0, 12345):
        backend.set(seed=seed)
        outputs = [np.zeros_like(head) for head in heads]
        backend.call(case.kernel, inputs, outputs, [WRITE] * len(outputs), list(case.params.values()))
        gradients = [None if array is None else np.zeros_like(array) for array in inputs]
        reqs = [SKIP if array is None else WRITE for array in gradients]
        arguments = [*heads, *inputs, *outputs]
        backend.call(case.kernel + "_grad", arguments, gradients, reqs, list(case.params.values()))
        results.append([*outputs, *(array for array in gradients if array is not None)])
    for other in results[1:]:
        for one, two in zip(results[0], other):
            np.testing.assert_array_equal(one, two)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("setting", [{}, {"multiprocessors": 5}, {"cooperative": 0}, {"occupancy": 0}], ids=str)
@pytest.mark.parametrize("case", STEPPING, ids=str)
def test_layer_at_once_or_step_by_step(backend: Emulated, case: Case, setting: dict[str, int], dtype: str) -> None:
    """Steps run after a grid barrier if device, blocks and shared memory allow it, else as one kernel each."""
    backend.set(**setting)
    backend.driver.fake_new_contexts()
    check(case, dtype, backend, np.random.default_rng(3))
    steps = case.dims["T"]
    launches = backend.launches()
    if "multiprocessors" not in setting and setting:
        assert launches.count("c") == 0
        assert launches.count("k") > 2 * steps
    else:
        fewest = -(-case.dims["H"] // (4 if case.kernel == "gru_layer" else 8))  # blocks of the forward pass
        at_once = fewest <= setting.get("multiprocessors", 40)
        assert launches.count("c") == 1 + at_once
        assert launches.count("k") <= 14 + (0 if at_once else steps)


def test_weights_that_do_not_fit_on_a_multiprocessor(backend: Emulated) -> None:
    """This shared memory holds a step of any size, and float32 weights of four of 100 units, but not of 200."""
    backend.set(shared=43008)
    backend.driver.fake_new_contexts()
    for hidden, at_once in ((100, 1), (200, 0)):
        case = Case("lstm_layer", {"T": 2, "B": 2, "I": 3, "H": hidden}, {"reverse": 0})
        check(case, "float32", backend, np.random.default_rng(3))
        assert backend.launches().count("c") == at_once


@pytest.mark.parametrize(("dtype", "off"), [("float32", 2e-5), ("float16", 8e-3)])
def test_result_off_by_more_than_allowed_fails(backend: Emulated, dtype: str, off: float) -> None:
    """A result that is off by so much of its size fails, and the kernels' are within half of what is allowed."""
    case = Case("lstm_cell", {"B": 3, "H": 33})

    class Off(Emulated):
        def __init__(self) -> None:
            self.driver = backend.driver

        def fetch(self, array: Any) -> Any:
            return array * (1 + off) if array.dtype.kind == "f" else array

    with pytest.raises(AssertionError, match="is off by"):
        check(case, dtype, Off(), np.random.default_rng(0))
    assert check(case, dtype, backend, np.random.default_rng(0)) < 0.5


def run(backend: Emulated, kernel: str, inputs: list[Any], shapes: list[tuple[int, ...]], *params: float) -> list[Any]:
    outputs = [np.full(shape, np.nan, np.float32) for shape in shapes]
    backend.call(kernel, inputs, outputs, [WRITE] * len(outputs), list(params))
    return outputs


def test_padding_does_not_spread(backend: Emulated) -> None:
    """Elements after an item's length are not read, whatever they hold; their gradients are zeros."""
    generator = np.random.default_rng(0)
    q, k, v, dout = (generator.normal(size=(2, 70, 5)).astype(np.float32) for _ in "qkvd")
    lengths = np.array([66, 0], np.int32)
    for array in (k, v):
        array[0, 66:], array[1] = np.nan, np.inf
    params, absent = (0.5, 0.0, 0.0, 0.0), [None] * 3
    out, lse = run(backend, "attention", [q, k, v, lengths, *absent], [(2, 70, 5), (2, 70)], *params)
    assert np.isfinite(out).all()
    assert not out[1].any()
    assert np.isneginf(lse[1]).all()
    inputs, shapes = [dout, None, q, k, v, lengths, *absent, out, lse], [(2, 70, 5)] * 3
    outputs: list[Any] = [np.full(shape, np.nan, np.float32) for shape in shapes] + [None] * 4
    backend.call("attention_grad", inputs, outputs, [WRITE] * 3 + [SKIP] * 4, list(params))
    assert all(np.isfinite(gradient).all() for gradient in outputs[:3])
    assert not outputs[1][0, 66:].any()
    assert not outputs[2][1].any()


def test_keys_that_the_mask_rules_out(backend: Emulated) -> None:
    """All keys of a query: MXNet makes NaNs of that."""
    q, k, v = (np.ones((1, size, 4), np.float32) for size in (3, 80, 80))
    mask = np.zeros((1, 1, 3, 80), np.float32)
    mask[0, 0, 1], mask[0, 0, 2, :70] = -np.inf, -np.inf
    inputs = [q, k, v, None, mask, None, None]
    out, lse = run(backend, "attention", inputs, [(1, 3, 4), (1, 3)], 1.0, 0.0, 0.0, 0.0)
    np.testing.assert_allclose(out[0], [[1] * 4, [np.nan] * 4, [1] * 4], rtol=1e-6)
    np.testing.assert_allclose(lse[0], [4 + np.log(80), np.nan, 4 + np.log(10)], rtol=1e-6)


def test_bits_after_the_first(backend: Emulated) -> None:
    check_draws(backend.run)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_masks_of_attention(backend: Emulated, name: str, dtype: str) -> None:
    check_form(backend.run, name, dtype)


@pytest.mark.every(23)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_large_scores(backend: Emulated, size: float, variant: str, dtype: str) -> None:
    """A query's own key has nearly all the weight: logarithms are rounded by more than what the other weights are."""
    check_large_scores(backend.run, size, dtype, variant)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_scores_that_cancel_are_finite(backend: Emulated, dtype: str) -> None:
    check_cancelled_scores(backend.run, dtype)


def test_numbers_that_are_not_finite(backend: Emulated) -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0, 1.0], np.float32)
    y, bits = np.empty_like(x), np.zeros(1, np.uint8)
    backend.call("relu", [x], [y, bits], [WRITE] * 2, [])
    np.testing.assert_array_equal(y, [np.nan, 0, np.inf, 0, 1])
    assert bits[0] == 0b10100
    x = np.full(64, np.inf, np.float32)
    y, bits = np.empty_like(x), np.zeros(8, np.uint8)
    backend.call("dropout", [x], [y, bits], [WRITE] * 2, [0.5, 1, 0])
    kept = np.unpackbits(bits, bitorder="little") == 1
    assert 0 < kept.sum() < 64
    assert np.isposinf(y[kept]).all()
    assert np.isnan(y[~kept]).all()


@pytest.mark.slow
@pytest.mark.parametrize("beginning", ["", "large scores"])
def test_address_sanitizer(tmp_path: Path, beginning: str) -> None:
    """No kernel reads or writes outside its arrays, its workspace or its shared memory."""
    names = ("libasan.so", "libstdc++.so.6")  # the second, or the first finds no library to hand exceptions on to
    preloaded = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    if not Path(preloaded[0]).is_file():
        pytest.skip("g++ has no AddressSanitizer here")
    flags = ("-fsanitize=address", "-g1")
    fibers = compile_fibers(tmp_path, *flags)
    kernels = compile_kernels(tmp_path, fibers, KERNELS / "cuda" / "kernels.cu", "asan", *flags)
    arguments = [str(built().driver), str(kernels), str(kernels), "1", beginning]
    script = [sys.executable, "-m", "tests.kernels.cuda_mutant", *arguments]
    options = "detect_leaks=0:detect_stack_use_after_return=0"
    environment = {**os.environ, "LD_PRELOAD": " ".join(preloaded), "ASAN_OPTIONS": options}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
