"""Recurrent layers over time beyond what every kernel is tested for: long sequences, wide layers, instruction sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.cases import Case, check_case, check_reqs, draw, run_backward, run_forward
from tests.kernels.table import LAYERS, SPECS
from tests.support.kernel_calls import ADD, SKIP, WRITE, call, workspace_bytes

ROOT = Path(__file__).parents[2]


def dims(T: int, B: int, I: int, H: int) -> dict[str, int]:  # noqa: E741
    return {"T": T, "B": B, "I": I, "H": H}


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("H", [1, 7, 33, 650])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_50_steps_are_within_tolerance(name: str, H: int, dtype: str) -> None:
    """The tolerances of all kernels hold for 50 steps too, in float16 with `pre` and y rounded at each step."""
    for number, (T, B) in enumerate((T, B) for T in (1, 2, 50) for B in (1, 3, 17)):
        wide = H + 5 if number % 2 else max(H - 3, 1)
        check_case(draw(name, dims(T, B, wide, H), dtype, seed=number, reverse=number % 2), call)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("name", LAYERS)
def test_many_chunks(name: str, reverse: int, dtype: str) -> None:
    """More rows than are worked on at a time: several steps a chunk, one step a chunk, one with fewer steps."""
    for sizes in (dims(700, 3, 8, 16), dims(5, 700, 3, 9), dims(7, 200, 4, 5), dims(641, 1, 2, 3)):
        check_case(draw(name, sizes, dtype, seed=1, reverse=reverse), call)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_reqs_over_many_chunks(name: str, dtype: str) -> None:
    rng, case, count = np.random.default_rng(2), draw(name, dims(5, 330, 3, 9), dtype, seed=2), len(SPECS[name].inputs)
    for req in ([ADD] * count, *rng.choice([SKIP, WRITE, ADD], (10, count)).tolist()):
        check_reqs(case, req, call)


@pytest.mark.parametrize("name", LAYERS)
def test_saturated_gates(name: str) -> None:
    """Limits rather than NaNs. After the gates of such a layer gradients vanish."""
    case = draw(name, dims(20, 3, 5, 7), seed=3)
    case.inputs[0] *= np.float32(1e4)
    outputs = run_forward(case, call)
    assert all(np.isfinite(array).all() for array in outputs)
    assert all(np.isfinite(array).all() for array in run_backward(case, outputs, call))


@pytest.mark.parametrize("name", LAYERS)
def test_one_unrolled_step_at_a_time_gives_the_same(name: str) -> None:
    """A layer of T steps is T layers of one step: states and their gradients are handed on."""
    case = draw(name, dims(4, 3, 6, 5), seed=4)
    outputs = run_forward(case, call)
    whole = run_backward(case, outputs, call)
    x, weights, states, count = case.inputs[0], case.inputs[1:5], case.inputs[5:], len(case.inputs) - 5
    singles, results = [], []
    for t in range(4):
        single = Case(name, "float32", dims(1, 3, 6, 5), [x[t : t + 1], *weights, *states], [], case.params)
        results.append(run_forward(single, call))
        singles.append(single)
        states = results[-1][1 : 1 + count]
    np.testing.assert_allclose(states[0], outputs[1], rtol=1e-5, atol=1e-6)
    dstates, rest = case.heads[1 : 1 + count], case.heads[1 + count :]
    total = [np.zeros_like(array) for array in weights]
    for t in (3, 2, 1, 0):
        singles[t].heads = [case.heads[0][t : t + 1], *dstates, *rest]
        dx, *gradients = run_backward(singles[t], results[t], call)
        gradients, dstates = gradients[:4], gradients[4:]
        np.testing.assert_allclose(dx[0], whole[0][t], rtol=1e-4, atol=1e-5)
        total = [one + other for one, other in zip(total, gradients)]
    for got, expected in zip([*total, *dstates], whole[1:]):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_the_workspace_does_not_grow_with_the_steps(name: str) -> None:
    """Of a step only a fraction of its cells is kept, and in float32 nothing in the forward pass."""

    def needed(T: int) -> tuple[int, int]:
        case = draw(name, dims(T, 64, 16, 32))
        outputs = case.empty(case.spec.outputs, case.spec.outputs)
        params = tuple(case.params.values())
        backward = [*case.heads, *case.inputs, *outputs]
        return (
            workspace_bytes(name, case.inputs, outputs, params=params),
            workspace_bytes(name + "_grad", backward, case.inputs, params=params),
        )

    short, long = needed(10), needed(100)
    cells = 90 * 64 * 32 * 4
    assert long[0] == short[0]
    assert long[1] - short[1] <= cells / 8


LEVELS = """
import hashlib
from tests.support.kernel_calls import call
from tests.kernels.cases import check_case, draw, run_forward
from tests.kernels.table import LAYERS
for sizes, dtype in (((9, 17, 40, 33), "float32"), ((9, 17, 40, 33), "float16"), ((3, 1, 7, 650), "float32"),
                     ((4, 200, 1, 1), "float32")):
  for name in LAYERS:
    case = draw(name, dict(zip("TBIH", sizes)), dtype, seed=5)
    check_case(case, call)
    print(hashlib.sha256(b"".join(array.tobytes() for array in run_forward(case, call))).hexdigest())
"""


def test_every_instruction_set() -> None:
    """Those without fused multiply-add round differently, which shows that they were in use."""

    def digests(level: str) -> str:
        environment = {**os.environ, "ECHO_DEBUG": f"level={level}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", LEVELS], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    found = {level: digests(level) for level in ("avx512", "avx2", "portable")}
    assert found["avx512"] == found["avx2"]  # in both each sum is made in the same order
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and {"avx2", "fma"} <= set(cpuinfo.read_text().split()):
        assert found["portable"] != found["avx2"]
