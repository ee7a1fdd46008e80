"""The kernels on the CPU against the references: shapes, types, what happens to gradients, threads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.attention_forms import FORMS, check_form
from tests.kernels.cases import (
    REQS,
    Case,
    check,
    check_case,
    check_reqs,
    draw,
    expected_backward,
    expected_forward,
    run_backward,
    run_forward,
)
from tests.kernels.large_scores import SIZES, VARIANTS, check_cancelled_scores, check_large_scores
from tests.kernels.table import PARAMS, SMALL, SPECS, sizes_of
from tests.support.kernel_calls import ADD, SKIP, WRITE, call

ROOT = Path(__file__).parents[2]


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", SPECS)
def test_kernel_of_any_shape_equals_its_reference(name: str, dtype: str) -> None:
    absences = (False, True) if any(tensor.optional for tensor in SPECS[name].inputs) else (False,)
    for dims, params, absent in itertools.product(sizes_of(name), PARAMS.get(name, [{}]), absences):
        check_case(draw(name, dims, dtype, absent=absent, **params), call)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(SPECS)), sizes=st.lists(st.integers(0, 70), min_size=5, max_size=5),
       dtype=st.sampled_from(["float32", "float16"]), seed=st.integers(0, 1000), absent=st.booleans())  # fmt: skip
def test_random_shapes(name: str, sizes: list[int], dtype: str, seed: int, absent: bool) -> None:
    check_case(draw(name, dict(zip(sizes_of(name)[0], sizes)), dtype, seed, absent), call)


@pytest.mark.every(13)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", SPECS)
def test_every_combination_of_reqs(name: str, dtype: str) -> None:
    case = draw(name, SMALL[name], dtype, seed=3)
    for req in itertools.product(*(REQS if tensor.gradient else (SKIP, ADD) for tensor in case.spec.inputs)):
        check_reqs(case, req, call)


@pytest.mark.parametrize("name", SPECS)
def test_gradients_of_outputs_may_be_absent(name: str) -> None:
    case = draw(name, SMALL[name], seed=4)
    there = [number for number, head in enumerate(case.heads) if head is not None]
    for left_out in (there[:1], there[1:], there):
        heads = [None if number in left_out else head for number, head in enumerate(case.heads)]
        partial = Case(case.name, case.dtype, case.dims, case.inputs, heads, case.params)
        check_case(partial, call)


@pytest.mark.parametrize("name", SPECS)
def test_skipped_outputs_stay_as_they_are(name: str) -> None:
    case = draw(name, SMALL[name], seed=5)
    whole = run_forward(case, call)
    for wanted in range(len(whole)):
        outputs = case.empty(case.spec.outputs, case.spec.outputs)
        req = [WRITE if number == wanted else 0 for number in range(len(whole))]
        call(name, case.inputs, outputs, req, tuple(case.params.values()))
        for number, (got, full) in enumerate(zip(outputs, whole)):
            assert np.array_equal(got, full if number == wanted else np.full_like(full, 77))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_lengths_of_any_type_and_out_of_range_are_clipped(dtype: str) -> None:
    """Any of the three types; negative lengths count as 0, too long ones as all."""
    lengths = np.array([-1, 0, 3, 5, 9]).astype(dtype)
    attention = draw("attention", {"N": 5, "Tq": 2, "Tk": 5, "D": 3, "Dv": 4}, seed=6)
    attention.inputs[3] = lengths
    attention.inputs[4] = None
    reverse = draw("sequence_reverse", {"T": 5, "B": 5, "R": 3}, seed=6)
    reverse.inputs[1] = lengths
    for case in (attention, reverse):
        outputs = run_forward(case, call)
        before = [None if array is None else np.zeros_like(array) for array in case.inputs]
        run_backward(case, outputs, call, before=before)
        if dtype == "float32":
            check_case(case, call)
        else:
            same = [array.astype(np.float32) if array is lengths else array for array in case.inputs]
            other = Case(case.name, case.dtype, case.dims, same, case.heads, case.params)
            for one, two in zip(outputs, run_forward(other, call)):
                assert np.array_equal(one, two)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_padding_does_not_spread(dtype: str) -> None:
    case = draw("attention", {"N": 3, "Tq": 40, "Tk": 130, "D": 9, "Dv": 5}, dtype, seed=7)
    case.inputs[3] = np.array([100, 0, 64], np.float32)
    for n, length in enumerate((100, 0, 64)):
        case.inputs[1][n, length:], case.inputs[2][n, length:] = np.nan, np.inf
        case.inputs[4][..., 100:] = np.nan
    check_case(case, call)
    gradients = run_backward(case, run_forward(case, call), call)
    assert not gradients[1][0, 100:].any()
    assert not gradients[2][1].any()


def test_a_bias_may_rule_keys_out() -> None:
    case = draw("attention", {"N": 2, "Tq": 40, "Tk": 100, "D": 9, "Dv": 5}, seed=8)
    case.inputs[3] = None
    case.inputs[4][..., :70] = -np.inf  # a whole block of keys
    check_case(case, call)
    case.inputs[4][..., 5, :] = -np.inf  # all keys of a query: MXNet makes NaNs of that
    outputs = run_forward(case, call)
    check(outputs, expected_forward(case), case.dtype, "a query without keys")
    assert np.isnan(outputs[0][:, 5]).all()
    assert not np.isnan(np.delete(outputs[0], 5, axis=1)).any()


@pytest.mark.parametrize("size", [1.0, 3.0, 6.0])
def test_gradients_of_short_rows_are_as_near_as_those_of_a_plain_softmax(size: float) -> None:
    """Sums over many rows cancel, as for a bias of the queries: then what each row is off by is all that is left."""
    case = draw("attention", {"N": 64, "Tq": 8, "Tk": 8, "D": 16, "Dv": 16}, seed=11)
    x = (size * case.inputs[0] / np.abs(case.inputs[0]).max()).astype(np.float32)
    case.inputs = [x, x, x, None, None, None, None]
    outputs = run_forward(case, call)
    exact = expected_backward(case, outputs)[0]
    scale, over = np.float32(case.params["scale"]), (0, 2, 1)
    scores = np.matmul(x, x.transpose(over)) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    dweights = np.matmul(case.heads[0], x.transpose(over))
    dscores = weights * (dweights - (weights * dweights).sum(-1, keepdims=True)) * scale
    plain, fused = (np.sqrt(np.square(found - exact).mean())
                    for found in (np.matmul(dscores, x), run_backward(case, outputs, call)[0]))  # fmt: skip
    assert fused < 1.35 * plain


@pytest.mark.parametrize("name", SPECS)
def test_nans_of_gradients_go_where_the_reference_has_them(name: str) -> None:
    """Above all to where a slope of 0 multiplies them."""
    for params in PARAMS.get(name, [{}]):
        case = draw(name, SMALL[name], seed=12, **params)
        if name == "attention":
            case.inputs[3] = None  # nothing goes to the values of padding, whatever it is
        outputs = run_forward(case, call)
        for head in (head for head in case.heads if head is not None and head.size):
            for at in np.random.default_rng(0).integers(0, head.size, 8):
                kept, head.flat[at] = head.flat[at], np.nan
                check(run_backward(case, outputs, call), expected_backward(case, outputs), "float32", f"{name} {at}")
                head.flat[at] = kept


@pytest.mark.parametrize("name", ["lstm_cell", "lstm_norm_cell", "lstm_layer", "gru_cell", "gru_reset"])
def test_every_order_of_gates(name: str) -> None:
    for order in range({"gru_cell": 6, "gru_reset": 2}.get(name, 24)):
        check_case(draw(name, SMALL[name], seed=order, order=order), call)


def test_large_scores() -> None:
    """Exponentials of the scores themselves would overflow."""
    case = draw("attention", {"N": 1, "Tq": 3, "Tk": 90, "D": 4, "Dv": 3}, seed=9, scale=100.0)
    case.inputs[3] = case.inputs[4] = None
    outputs = run_forward(case, call)
    assert np.isfinite(outputs[0]).all()
    assert np.isfinite(outputs[1]).all()
    assert np.abs(outputs[1]).max() > 200


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_large_scores(size: float, variant: str, dtype: str) -> None:
    """A query's own key has nearly all the weight: logarithms are rounded by more than what the other weights are."""
    check_large_scores(call, size, dtype, variant)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_scores_that_cancel_are_finite(dtype: str) -> None:
    check_cancelled_scores(call, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_masks_of_attention(name: str, dtype: str) -> None:
    check_form(call, name, dtype)


@pytest.mark.parametrize("name", ["lstm_cell", "gru_cell", "gru_reset", "mlp_score", "bias_act"])
def test_large_and_infinite_values(name: str) -> None:
    """Saturated gates and activations: their limits, and gradients near zero rather than NaNs.

    Those of gates are held to more in `test_saturation`; that of bias_act has 1 - y of an output that is rounded.
    """
    for size in (50.0, 1e4, 1e30):
        for act in range(1, 4) if name == "bias_act" else (0,):
            case = draw(name, SMALL[name], seed=10, **({"act": act} if name == "bias_act" else {}))
            if name == "mlp_score":
                case.inputs[3] = case.inputs[4] = None
            case.inputs[0] *= np.float32(size)
            outputs = run_forward(case, call)
            check(outputs, expected_forward(case), "float32", f"{name} times {size}")
            for one, other in zip(run_backward(case, outputs, call), expected_backward(case, outputs)):
                assert one is None or np.abs(one - other).max() <= 1e-6 * max(1.0, np.abs(other).max())


def test_statistics_of_rows_far_from_zero() -> None:
    """A variance taken as the mean of squares less the square of the mean would be gone."""
    case = draw("layer_norm", {"N": 3, "H": 650}, seed=11)
    case.inputs[0] = (case.inputs[0] + 1000).astype(np.float32)
    outputs = run_forward(case, call)
    exact = case.inputs[0].astype(np.float64)
    expected = (exact - exact.mean(1, keepdims=True)) / exact.std(1, keepdims=True) * case.inputs[1] + case.inputs[2]
    assert np.abs(outputs[0] - expected).max() < 1e-3


def test_nan_and_infinity_in_relu() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1], np.float32)
    y, bits = np.empty_like(x), np.empty(1, np.uint8)
    call("relu", [x], [y, bits])
    np.testing.assert_array_equal(y, [np.nan, np.inf, 0, 0, 0, 1, 0])
    assert not np.signbit(y[1:]).any()
    assert bits[0] == 0b100010


THREADS = """
import hashlib, itertools
from tests.support.kernel_calls import call
from tests.kernels.cases import draw, run_forward, run_backward
from tests.kernels.table import LAYERS, SPECS
LARGE = {"attention": dict(N=5, Tq=70, Tk=130, D=33, Dv=16), "dropout": dict(n=300001), "relu": dict(n=300001),
         "draw_mask": dict(N=30, Tq=100, Tk=101),
         "pack_mask": dict(n=300001), "apply_mask": dict(n=300001),
         "sequence_reverse": dict(T=30, B=7, R=301), "mlp_score": dict(B=9, T=20, H=650),
         "layer_norm": dict(N=99, H=650), "bias_act": dict(N=99, H=650), "lstm_cell": dict(B=64, H=650),
         "gru_cell": dict(B=64, H=650), "gru_reset": dict(B=64, H=650), "gru_mix": dict(B=64, H=650),
         "lstm_norm_cell": dict(B=64, H=650),
         "weighted_sum": dict(B=9, T=20, H=650), "softmax_output": dict(N=600, I=70, V=1200),
         "cross_entropy": dict(N=99, V=1200), "linear_cross_entropy": dict(N=600, I=70, V=1200),
         **dict.fromkeys(LAYERS, dict(T=25, B=64, I=70, H=150))}
for name, dtype in itertools.product(SPECS, ("float32", "float16")):
    case = draw(name, LARGE[name], dtype, 12)
    digest = set()
    for repeat in range(3):
        outputs = run_forward(case, call)
        found = [array for array in (*outputs, *run_backward(case, outputs, call)) if array is not None]
        digest.add(hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest())
    print(name, dtype, *digest)
"""


@pytest.mark.slow
def test_threads_change_nothing() -> None:
    """The same bits in every run, with one thread and with two."""

    def digests(threads: int) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_DYNAMIC": "false"}
        done = subprocess.run(
            [sys.executable, "-c", THREADS], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    one = digests(1)
    assert [len(line.split()) for line in one.splitlines()] == [3] * 2 * len(SPECS)
    assert digests(2) == one


FORK = """
import os, signal
import numpy as np
from tests.support.kernel_calls import call
x, b = np.ones((1000, 600), np.float32), np.zeros(600, np.float32)
parent, child = x.copy(), x.copy()
call("bias_act", [x, b], [parent], params=(1,))
if (pid := os.fork()) == 0:
    signal.alarm(20)  # a child that hangs is ended by it
    call("bias_act", [x, b], [child], params=(1,))
    os._exit(0 if np.array_equal(parent, child) else 1)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_forked_children_work() -> None:
    """OpenMP's threads stay with the parent, and a child that waits for them waits for ever."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_DYNAMIC": "false"}
    subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, env=environment, check=True)


def test_two_threads_of_python_at_once() -> None:
    """Calls share nothing: the same results from threads side by side."""
    import concurrent.futures

    cases = [draw(name, SMALL[name], seed=13) for name in SPECS]

    def both(case: Case) -> list[Any]:
        outputs = run_forward(case, call)
        return [*outputs, *run_backward(case, outputs, call)]

    alone = [both(case) for case in cases]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for one, other in zip(alone * 20, pool.map(both, cases * 20)):
            assert all(a is None or np.array_equal(a, b) for a, b in zip(one, other))
