"""Random calls of every kernel, and how far its results are from the references: for all backends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tests.kernels.table import MASK, SPECS, Spec, Tensor
from tests.support import reference
from tests.support.kernel_calls import ADD, SKIP, WRITE

# Largest error of a tensor, relative to its largest element; the reference gets the rounded inputs.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3}
# Gradients of attention take a part of each row from its result, which is rounded; dropout makes that part larger.
LOOSER = {("attention", "float16"): 3}


@dataclass
class Case:
    """A call: inputs, the gradients of the outputs, parameters. Arrays have the types that the kernel gets."""

    name: str
    dtype: str
    dims: Mapping[str, int]
    inputs: list[Any]
    heads: list[Any]
    params: dict[str, float]

    @property
    def spec(self) -> Spec:
        return SPECS[self.name]

    def empty(self, tensors: Sequence[Tensor], present: Sequence[Any]) -> list[Any]:
        """Arrays of these tensors, filled with what must not be seen afterwards; None where there is none."""
        return [
            None
            if there is None
            else np.full(
                getattr(there, "shape", ()) if there is not tensor else tensor.sizes(self.dims),
                77,
                tensor.dtype or self.dtype,
            )
            for tensor, there in zip(tensors, present)
        ]


def draw(name: str, dims: Mapping[str, int], dtype: str = "float32", seed: int = 0, absent: bool = False,
         **params: float) -> Case:  # fmt: skip
    """A random case; ``absent`` leaves the optional inputs out. The seed is part of what a failure prints."""
    rng, spec = np.random.default_rng(seed), SPECS[name]

    def value(tensor: Tensor) -> Any:
        if tensor.optional and absent:
            return None
        shape = tensor.sizes(dims)
        if tensor.shape == "bits":
            return np.packbits(rng.integers(0, 2, tensor.count(dims)), bitorder="little")
        if tensor.shape == "1":
            return np.full(1, 1.25, tensor.dtype or dtype)
        if tensor.dtype == "float32":  # lengths, some of them 0 and some too long; or labels; not all of them whole
            most = next((dims[symbol] for symbol in ("Tk", "V", "T") if symbol in dims), 0)
            return (rng.integers(0, most + 2, shape) + rng.choice((0, 0.5), shape)).astype(np.float32)
        # the weights of a layer over time at the size of trained ones: with larger ones errors grow with each step
        depth = dims.get("H", dims.get("I", 1))
        size = max(depth, 1) ** -0.5 if re.fullmatch("[34]?H,[IH]|V,I", tensor.shape) else 1.0
        drawn = size * rng.normal(size=shape)
        if tensor is MASK and params.get("masking"):
            # most keys stay: of a query with one alone all gradients cancel, and only roundings would be compared
            drawn = np.where(drawn > -0.9, np.where(drawn > 0.3, 1, 0.5), 0)
        return drawn.astype(dtype)

    inputs = [value(tensor) for tensor in spec.inputs]
    if name == "pack_mask":
        inputs = [np.where(inputs[0] > 0, 1.25, 0).astype(dtype)]
    heads = [rng.normal(size=tensor.sizes(dims)).astype(dtype) if tensor.gradient else None for tensor in spec.outputs]
    return Case(name, dtype, dims, inputs, heads, {**spec.params, **params})


def error(got: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected element; infinite where they are not finite alike."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    most = np.abs(expected[finite]).max()
    return float(np.abs(got[finite] - expected[finite]).max() / (most or 1.0))


def _doubles(arrays: Sequence[Any]) -> list[Any]:
    return [None if a is None else a if a.dtype == np.uint8 else a.astype(np.float64) for a in arrays]


def check(got: Sequence[Any], expected: Sequence[Any], dtype: str, what: str) -> None:
    """Fails where an array that is there is too far from what is expected."""
    for number, (one, other) in enumerate(zip(got, expected)):
        if one is None:
            continue
        if one.dtype == np.uint8:
            assert np.array_equal(one, other), f"{what}, output {number}"
            continue
        assert other is not None, f"{what}, output {number}: expected no such gradient"
        found = error(one, other)
        assert found <= LOOSER.get((what.split()[0], dtype), 1) * TOLERANCE[dtype], (
            f"{what}, output {number}: error {found:.2e}"
        )


Runner = Callable[..., None]  # tests.support.kernel_calls.call, or something like it


def check_draws(call: Runner) -> None:
    """Bits after a first element that was dropped, and where nothing is trained."""
    for first in (0.0, 1.0):
        case = draw("draw_mask", {"N": 3, "Tq": 5, "Tk": 7})
        case.inputs[0][:] = first
        check_case(case, call)


def run_forward(case: Case, call: Runner) -> list[Any]:
    outputs = case.empty(case.spec.outputs, case.spec.outputs)
    call(case.name, case.inputs, outputs, None, tuple(case.params.values()))
    return outputs


def run_backward(
    case: Case, outputs: Sequence[Any], call: Runner, req: Sequence[int] | None = None, before: Sequence[Any] = ()
) -> list[Any]:
    """Gradients of the inputs that are there; ``before`` is what they hold before the call."""
    given = list(before) or case.empty(case.spec.inputs, case.inputs)
    gradients = [None if array is None else array.copy() for array in given]
    tensors = [*case.heads, *case.inputs, *outputs]
    call(case.name + "_grad", tensors, gradients, req, tuple(case.params.values()))
    return gradients


def expected_forward(case: Case) -> tuple[Any, ...]:
    run: Any = getattr(reference, case.name)
    return tuple(run(*_doubles(case.inputs), **case.params))


def expected_backward(case: Case, outputs: Sequence[Any]) -> tuple[Any, ...]:
    run: Any = getattr(reference, case.name + "_grad")
    return tuple(run(*_doubles([*case.heads, *case.inputs, *outputs]), **case.params))


def check_case(case: Case, call: Runner) -> None:
    """Both passes against the reference."""
    what = f"{case.name} {case.dtype} {dict(case.dims)} {case.params}"
    outputs = run_forward(case, call)
    check(outputs, expected_forward(case), case.dtype, what)
    gradients = run_backward(case, outputs, call)
    check(gradients, expected_backward(case, outputs), case.dtype, what + " backward")


def check_reqs(case: Case, req: Sequence[int], call: Runner) -> None:
    """The backward pass with these reqs: skipped gradients stay as they were, others are written or added to.

    Gradients of bits, which are none, are only ever written.
    """
    req = [min(how, WRITE) if tensor.shape == "bits" else how for how, tensor in zip(req, case.spec.inputs)]
    outputs = run_forward(case, call)
    rng = np.random.default_rng(1)
    before = [
        None if array is None else np.asarray(rng.normal(size=array.shape), array.dtype)
        for array in case.empty(case.spec.inputs, case.inputs)
    ]
    gradients = run_backward(case, outputs, call, req, before)
    expected = expected_backward(case, outputs)
    for number, (how, was, got) in enumerate(zip(req, before, gradients)):
        if was is None:
            continue
        what = f"{case.name} {case.dtype} with reqs {tuple(req)}"
        if how == SKIP:
            assert np.array_equal(got, was), f"{what}: output {number} was skipped, and written to"
        else:
            wanted = expected[number] + (was.astype(np.float64) if how == ADD else 0.0)
            check([got], [wanted], case.dtype, f"{what}, {number} as")


REQS = (SKIP, WRITE, ADD)
