"""Calls of every fused kernel with random inputs, held against the float64 reference: on a GPU or an emulated one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

import numpy as np

from benchmarks.gpu_kernels import KERNELS
from tests.support import reference
from tests.support.kernel_calls import ADD, SKIP, WRITE

# Of the largest result, how far a kernel may be off; float16 keeps 11 bits.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3}
# Of the largest gradient of an output, or input of a layer: of this size are terms of a sum whose result is nearly 0,
# by chance or always. Each is rounded, and what they leave of one another is all of the result.
TERMS = {"float32": 1, "float16": 1 / 4}
# Gradients of attention take a part of each row from its result, which is rounded; dropout makes that part larger.
LOOSER = {("attention_grad", "float16"): 3}
# The dimension that bounds lengths, or labels, one of which is of no class.
LENGTHS = {"attention": "Tk", "sequence_reverse": "T", **dict.fromkeys(
    ("softmax_output", "cross_entropy", "linear_cross_entropy"), "V")}  # fmt: skip
LAYERS = {"lstm_layer": {}, "gru_layer": {}, "rnn_layer": {"act": 2.0}}
SUMMED = {("mlp_score", 2), ("softmax_output", 1), ("linear_cross_entropy", 1),
          *((layer, weight) for layer in LAYERS for weight in (1, 3))}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A kernel, its dimensions and parameters; inputs that are absent, by position; the type of lengths or labels."""

    kernel: str
    dims: dict[str, int]
    params: dict[str, float] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    lengths: str = "int32"

    def __str__(self) -> str:
        dims = " ".join(f"{name}={size}" for name, size in self.dims.items())
        params = "".join(f" {name}={value:g}" for name, value in self.params.items())
        return f"{self.kernel} {dims}{params}" + (f" without {self.absent}" if self.absent else "")


class Backend(Protocol):
    """A backend on which kernels run: arrays of its own, and the call."""

    def place(self, array: Any) -> Any:
        """The array, or None, in the memory of the device."""

    def fetch(self, array: Any) -> Any:
        """The array as one of NumPy."""

    def call(self, kernel: str, inputs: list[Any], outputs: list[Any], req: list[int], params: list[float]) -> None:
        """Runs a kernel on placed arrays."""


def draw(case: Case, dtype: str, generator: np.random.Generator) -> list[Any]:
    """Random inputs of a case: of unit size, weights and what is summed over scaled down by the number of terms."""
    inputs: list[Any] = []
    for number, tensor in enumerate(KERNELS[case.kernel].inputs):
        shape = tensor.shape(case.dims)
        if number in case.absent:
            array = None
        elif tensor.type == "lengths":
            most = case.dims[LENGTHS[case.kernel]]
            whole = generator.integers(0, most + 1, size=shape)
            array = (whole + generator.choice((0, 0.5), shape)).astype(case.lengths)  # MXNet cuts them to whole numbers
            if array.size > 1:
                array.flat[0] = most  # so that no kernel gets around its second tile
        elif tensor.type == "uint8":
            array = np.packbits(generator.integers(0, 2, 8 * shape[0]), bitorder="little")
        elif tensor.type == "float32":
            array = np.full(shape, 1.25, np.float32)
        else:
            summed = (case.kernel, number) in SUMMED
            array = generator.normal(size=shape, scale=1 / np.sqrt(max(1, shape[-1])) if summed else 1).astype(dtype)
            if tensor.name == "mask" and case.params.get("masking"):
                array = np.where(array > -0.5, np.where(array > 0.3, 1, 0.5), 0).astype(dtype)
        inputs.append(array)
    return inputs


def _blank(like: Any, dtype: str) -> Any:
    """An array in which what a kernel leaves out shows."""
    return np.full(like.shape, 0xAB if dtype == "uint8" else np.nan, dtype)


def _worst(kernel: str, got: Any, expected: Any, tolerance: float, what: str, terms: float = 0) -> float:
    """The error as a part of what is allowed; AssertionError where it is more than 1.

    What is summed is no smaller than the result, and than ``terms``.
    """
    if got.dtype == np.uint8:
        assert (got == expected).all(), f"{kernel}: {what} has wrong bits"
        return 0.0
    assert (np.isfinite(got) == np.isfinite(expected)).all(), f"{kernel}: {what} is not finite, or not -inf, somewhere"
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    error = np.abs(got[finite].astype(np.float64) - expected[finite]).max()
    allowed = tolerance * max(1e-2, terms, np.abs(expected[finite]).max())
    assert error <= allowed, f"{kernel}: {what} is off by {error:.2e}, {allowed:.2e} is allowed"
    return float(error / allowed)


def _largest(arrays: list[Any]) -> float:
    return max((float(np.abs(array).max()) for array in arrays if array is not None and array.size), default=0.0)


def _run(
    backend: Backend, kernel: str, inputs: list[Any], outputs: list[Any], req: list[int], params: dict[str, float]
) -> list[Any]:
    placed = [backend.place(array) for array in outputs]
    backend.call(kernel, [backend.place(array) for array in inputs], placed, req, list(params.values()))
    return [None if array is None else backend.fetch(array) for array in placed]


def check_forward(case: Case, dtype: str, backend: Backend, inputs: list[Any]) -> tuple[list[Any], float]:
    """The outputs, and the worst error as a part of what is allowed.

    Raises:
        AssertionError: an output is wrong.
    """
    expected = getattr(reference, case.kernel)(*inputs, **case.params)
    types = [tensor.type or dtype for tensor in KERNELS[case.kernel].outputs]
    blanks = [_blank(array, kind) for array, kind in zip(expected, types)]
    outputs = _run(backend, case.kernel, inputs, blanks, [WRITE] * len(blanks), case.params)
    terms = TERMS[dtype] * _largest(inputs) if case.kernel in LAYERS else 0  # others' results are small, not cancelled
    errors = [
        _worst(case.kernel, outputs[number], expected[number], TOLERANCE[dtype], f"output {number}", terms)
        for number in range(len(outputs))
    ]
    return outputs, max(errors)


def check_backward(
    case: Case, dtype: str, backend: Backend, inputs: list[Any], outputs: list[Any], generator: np.random.Generator,
    req: Callable[[int], int] | None = None,
) -> float:  # fmt: skip
    """The worst error of the gradients, as a part of what is allowed; req(i) says what happens to that of input i.

    Raises:
        AssertionError: a gradient is wrong.
    """
    kernel = case.kernel + "_grad"
    heads: list[Any] = [generator.normal(size=output.shape).astype(dtype) for output in outputs]
    for number in KERNELS[case.kernel].without_gradient:
        heads[number] = None
    arguments = [*heads, *inputs, *outputs]
    expected = list(getattr(reference, kernel)(*arguments, **case.params))
    reqs = [SKIP if value is None else (req or (lambda _: WRITE))(number) for number, value in enumerate(expected)]
    before: list[Any] = []
    for number, value in enumerate(expected):
        if reqs[number] == ADD and inputs[number].dtype.kind == "f":
            before.append(generator.normal(size=value.shape).astype(inputs[number].dtype))
            expected[number] = value + before[number]
        else:
            reqs[number] = min(reqs[number], WRITE)
            like = inputs[number]
            before.append(None if reqs[number] == SKIP else np.full(like.shape, 99).astype(like.dtype))
    got = _run(backend, kernel, arguments, before, reqs, case.params)
    tolerance = LOOSER.get((kernel, dtype), 1) * TOLERANCE[dtype]
    terms = TERMS[dtype] * _largest(heads)
    errors = [
        _worst(kernel, array, expected[number], tolerance, f"gradient {number}", terms)
        for number, array in enumerate(got)
        if array is not None
    ]
    return max(errors, default=0.0)


def check(
    case: Case, dtype: str, backend: Backend, generator: np.random.Generator,
    req: Callable[[int], int] | None = None,
) -> float:  # fmt: skip
    """A kernel and its gradient: the worst error as a part of what is allowed.

    Raises:
        AssertionError: a result is wrong.
    """
    inputs = draw(case, dtype, generator)
    outputs, error = check_forward(case, dtype, backend, inputs)
    return max(error, check_backward(case, dtype, backend, inputs, outputs, generator, req))


def cases_of(scale: int) -> list[Case]:
    """Cases of every kernel with odd, even, tiny and empty dimensions; ``scale`` multiplies the batches."""
    cases = []
    for hidden in (1, 7, 33, 650, 1500):
        batch = 3 * scale
        cases += [
            Case("lstm_cell", {"B": batch, "H": hidden}),
            Case("gru_cell", {"B": batch, "H": hidden}),
            Case("gru_reset", {"B": batch, "H": hidden}, {"keeps": float(hidden % 2), "order": float(hidden % 2)}),
            Case("gru_mix", {"B": batch, "H": hidden}),
            Case("lstm_norm_cell", {"B": 9 * scale, "H": hidden}, {"eps": 1e-2}),
            Case("weighted_sum", {"B": batch, "T": 11, "H": hidden}),
            Case("mlp_score", {"B": batch, "T": 5, "H": hidden}, {"eps": 1e-5}, absent=(3, 4)),
            Case("mlp_score", {"B": 2 * scale, "T": 17, "H": hidden}, {"eps": 1e-2}),
            Case("layer_norm", {"N": 19 * scale, "H": hidden}, {"eps": 1e-2}),
            Case("sequence_reverse", {"T": 6, "B": batch, "R": hidden}, lengths="float32"),
            Case("dropout", {"n": hidden * scale}, {"keep": 0.7, "seed": 2.0**40 + 5, "offset": 2.0**33 + 1}),
            *[Case(name, {"n": hidden * scale}) for name in ("relu", "pack_mask", "apply_mask")],
        ]
        cases += [Case("bias_act", {"N": 11 * scale, "H": hidden}, {"act": act}) for act in range(5)]
    for lengths in ("float32", "float16", "int32"):
        cases.append(Case("sequence_reverse", {"T": 7, "B": 4, "R": 8}, lengths=lengths))
        cases.append(attention_case((2, 5, 9, 8, 8), 0.3, (4,), lengths=lengths))
    cases += [
        Case("sequence_reverse", {"T": 7, "B": 4, "R": 5}, absent=(1,)),
        Case("dropout", {"n": 4096}, {"keep": 1.0, "seed": 0, "offset": 0}),
        attention_case((2, 70, 131, 33, 70), 0.2),
        attention_case((2, 70, 131, 33, 70), 0.2, (5, 6)),
        attention_case((scale, 64, 64, 64, 64), 0.125, (3, 5, 6)),
        attention_case((scale, 64, 64, 64, 64), 0.125, (3, 4, 5, 6)),
        attention_case((scale, 1, 50, 130, 130), 0.1, (4,)),
        attention_case((6 * scale, 67, 70, 8, 8), 0.3, masking=2, fill=-1e4, root=1, Gb=2 * scale, L=6 * 67 * scale),
        Case(
            "draw_mask", {"N": 3 * scale, "Tq": 5, "Tk": 7}, {"keep": 0.8, "seed": 2.0**40 + 5, "offset": 2.0**33 + 1}
        ),
    ]
    cases += [case for layer in LAYERS for case in _layers(layer, scale)]
    cases += [Case("rnn_layer", {"T": 5, "B": 3, "I": 7, "H": 33}, {"act": 0, "reverse": way}) for way in (0, 1)]
    cases += _losses(scale) + _empty_cases()
    return cases + _plain_cases({case.kernel for case in cases})


def _layers(layer: str, scale: int) -> list[Case]:
    """Both ways, more rows than a block has, one of everything, weights of many terms, and dimensions of 0."""
    sizes = [(5, 3, 7, 33, 0), (5, 3, 7, 33, 1), (3, 66, 12, 20, 0), (4, 1, 1, 1, 1), (2, 2 * scale, 16, 150, 0)]
    sizes += [(0, 2, 3, 4, 0), (0, 2, 3, 4, 1), (3, 0, 3, 4, 0), (3, 2, 0, 4, 0)]
    return [Case(layer, dict(zip("TBIH", size)), {**LAYERS[layer], "reverse": size[-1]}) for size in sizes]


def attention_case(sizes: tuple[int, ...], scale: float, absent: tuple[int, ...] = (), lengths: str = "int32",
                   masking: float = 0, fill: float = 0, root: float = 0, **more: int) -> Case:  # fmt: skip
    """Sizes are those of N, Tq, Tk, D and Dv; lengths are of items, and one mask is that of all, but for ``more``."""
    dims = dict(zip(("N", "Tq", "Tk", "D", "Dv"), sizes))
    dims.update({"L": dims["N"], "Gb": 1, "Gh": 1, "R": dims["Tq"], **more})
    return Case("attention", dims, {"scale": scale, "masking": masking, "fill": fill, "root": root}, absent, lengths)


def _plain_cases(known: set[str]) -> list[Case]:
    """Kernels of the table that have no case here: each size another small number, parameters of one half."""
    cases = []
    for kernel in KERNELS.values():
        if kernel.name not in known:
            sizes = {symbol: 5 + 4 * number for number, symbol in enumerate(kernel.symbols)}
            cases.append(Case(kernel.name, sizes, dict.fromkeys(kernel.params, 0.5)))
    return cases


def _loss_params(ignore: int = 0, normalization: int = 0, smooth: float = 0.0) -> dict[str, float]:
    return {
        "grad_scale": 2.0, "use_ignore": ignore, "ignore_label": 1, "normalization": normalization,
        "smooth_alpha": smooth,
    }  # fmt: skip


def _losses(scale: int) -> list[Case]:
    """Softmax outputs and entropies: tails of tiles, rows of a warp or more, sums over classes in parts or not."""
    small, wide = {"N": 5 * scale, "I": 3, "V": 7}, {"N": 33 * scale, "I": 12, "V": 2060}
    cases = [
        Case("softmax_output", small, _loss_params(ignore, way, smooth), absent, lengths)
        for ignore, way, smooth, absent, lengths in (
            (0, 0, 0.0, (), "float32"), (1, 2, 0.1, (), "float16"), (1, 1, 0.1, (2,), "int32"), (0, 2, 0.0, (), "int32")
        )
    ]  # fmt: skip
    cases.append(Case("softmax_output", {"N": 66, "I": 130, "V": 67}, _loss_params(1, 0, 0.1)))
    cases += [Case("softmax_output", wide, _loss_params(1, 2)), Case("softmax_output", wide, _loss_params(0, 1))]
    for lengths in ("float32", "float16", "int32"):
        cases.append(Case("cross_entropy", {"N": 3 * scale, "V": 7}, lengths=lengths))
        cases.append(Case("linear_cross_entropy", small, absent=(2,), lengths=lengths))
    cases += [Case("cross_entropy", {"N": 2 * scale, "V": classes}) for classes in (1, 64, 2060)]
    return [*cases, Case("linear_cross_entropy", {"N": 66, "I": 130, "V": 67}), Case("linear_cross_entropy", wide)]


def _empty_cases() -> list[Case]:
    """Dimensions of 0."""
    return [
        Case("lstm_cell", {"B": 0, "H": 5}),
        Case("gru_cell", {"B": 2, "H": 0}),
        Case("gru_reset", {"B": 0, "H": 5}, {"keeps": 0.0}),
        Case("gru_mix", {"B": 2, "H": 0}),
        Case("lstm_norm_cell", {"B": 0, "H": 5}, {"eps": 1e-5}),
        Case("weighted_sum", {"B": 2, "T": 0, "H": 3}),
        Case("mlp_score", {"B": 2, "T": 0, "H": 3}, {"eps": 1e-5}),
        Case("mlp_score", {"B": 0, "T": 4, "H": 8}, {"eps": 1e-5}),
        Case("layer_norm", {"N": 0, "H": 9}, {"eps": 1e-5}),
        Case("bias_act", {"N": 0, "H": 9}, {"act": 1}),
        Case("sequence_reverse", {"T": 0, "B": 2, "R": 3}),
        Case("dropout", {"n": 0}, {"keep": 0.5, "seed": 1, "offset": 0}),
        *[Case(name, {"n": 0}) for name in ("relu", "pack_mask", "apply_mask")],
        attention_case((2, 3, 0, 4, 5), 1.0),
        attention_case((2, 0, 3, 4, 5), 1.0),
        Case("draw_mask", {"N": 3, "Tq": 0, "Tk": 7}, {"keep": 0.5, "seed": 1, "offset": 0}),
        *[
            Case("softmax_output", dict(zip("NIV", sizes)), _loss_params(1, 2, 0.1))
            for sizes in ((0, 3, 4), (3, 0, 4), (3, 2, 0))
        ],
        *[Case("linear_cross_entropy", dict(zip("NIV", sizes))) for sizes in ((0, 3, 4), (3, 0, 4), (3, 2, 0))],
        *[Case("cross_entropy", dict(zip("NV", sizes))) for sizes in ((0, 4), (3, 0))],
    ]
