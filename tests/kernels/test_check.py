"""Calls that no kernel takes: each error says which tensor, what it got and what it expected; nothing is written."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Sequence

import numpy as np
import pytest

from echo.errors import EchoError, KernelError, NativeError
from echo.kernels import library
from tests.kernels.cases import draw, run_forward
from tests.kernels.table import SMALL, SPECS
from tests.support import kernel_calls
from tests.support.kernel_calls import ADD, SKIP, WRITE, call, workspace_bytes


def full(*shape: int, dtype: str = "float32") -> Any:
    return np.ones(shape, dtype)


def misaligned(*shape: int) -> Any:
    """A float32 array one byte off."""
    count = int(np.prod(shape))
    return np.zeros(4 * count + 8, np.uint8)[1 : 4 * count + 1].view(np.float32).reshape(shape)


def lstm(**changes: Any) -> dict[str, Any]:
    """A right call of lstm_cell with some arguments changed."""
    right = {"inputs": [full(3, 8), full(3, 2)], "outputs": [full(3, 2), full(3, 2)], "req": None, "params": ()}
    return {**right, **changes}


def attention(**changes: Any) -> dict[str, Any]:
    tensors = {
        "q": full(2, 3, 4),
        "k": full(2, 5, 4),
        "v": full(2, 5, 6),
        "lengths": None,
        "mask": None,
        "bits": None,
        "factor": None,
    }
    tensors.update(changes)
    return {"inputs": list(tensors.values()), "outputs": [full(2, 3, 6), full(2, 3)], "params": (1.0, 0, 0, 0)}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    # counts
    ("lstm_cell", lstm(inputs=[full(3, 8)]), "lstm_cell: expected 2 inputs, got 1"),
    ("lstm_cell", lstm(outputs=[full(3, 2)]), "lstm_cell: expected 2 outputs, got 1"),
    ("lstm_cell", lstm(params=(1.0, 0.0)), "lstm_cell: expected 1 parameters, got 2"),
    ("lstm_cell", lstm(params=(24.0,)), "order is 24, expected the number of an order of 4 gates, 0 to 23"),
    ("lstm_cell", lstm(params=(0.5,)), "order is 0.5, expected the number of an order of 4 gates, 0 to 23"),
    ("gru_cell", {"inputs": [full(3, 6), full(3, 6), full(3, 2)], "outputs": [full(3, 2)], "params": (6.0,)},
     "order is 6, expected the number of an order of 3 gates, 0 to 5"),
    ("gru_reset", {"inputs": [full(3, 4), full(3, 2)], "outputs": [full(3, 2)] * 2, "params": (0.0, 2.0)},
     "order is 2, expected the number of an order of 2 gates, 0 or 1"),
    ("gru_reset", {"inputs": [full(3, 4), full(3, 2)], "outputs": [full(3, 2)] * 2, "params": (0.5,)},
     "keeps is 0.5, expected 0 or 1"),
    ("lstm_cell", lstm(req=[WRITE]), "lstm_cell: got 1 reqs for 2 outputs"),
    ("no_such", lstm(), "there is no kernel no_such"),
    ("lstm_cell_grad_grad", lstm(), "there is no kernel lstm_cell_grad_grad"),
    # shapes
    ("lstm_cell", lstm(inputs=[full(3, 8), full(4, 2)]), r"c has shape \(4, 2\), expected \[B,H\] with B=3 H=2"),
    ("lstm_cell", lstm(inputs=[full(3, 7), full(3, 2)]), r"pre has shape \(3, 7\), expected \[B,4H\] with B=3"),
    ("lstm_cell", lstm(inputs=[full(24), full(3, 2)]), r"pre has shape \(24,\), expected \[B,4H\]"),
    ("lstm_cell", lstm(outputs=[full(3, 2), full(3, 3)]), r"c' has shape \(3, 3\), expected \[B,H\] with B=3 H=2"),
    ("lstm_cell", lstm(inputs=[full(1, 1, 1, 1, 1, 1), full(3, 2)]), "input 0 has 6 axes, expected 5 at most"),
    ("attention", attention(k=full(2, 5, 3)), r"k has shape \(2, 5, 3\), expected \[N,Tk,D\] with N=2 Tk=5 D=4"),
    ("attention", attention(mask=full(1, 1, 3, 4)), r"mask has shape \(1, 1, 3, 4\), expected \[Gb,Gh,R,Tk\] "),
    ("attention", attention(mask=full(1, 1, 2, 5)), r"a mask of 1 batches, 1 heads and 2 rows does not fit 2 items"),
    ("attention", attention(mask=full(3, 1, 1, 5)), r"a mask of 3 batches, 1 heads and 1 rows does not fit 2 items"),
    ("attention", attention(lengths=full(5)), "expected lengths for each item or each query, got 5"),
    ("attention", attention(bits=full(3, dtype="uint8")), r"bits has shape \(3,\), expected .* with N=2 Tq=3 Tk=5"),
    ("attention", attention(bits=full(4, dtype="uint8")), "bits came without factor, expected both or neither"),
    ("relu", {"inputs": [full(9)], "outputs": [full(9), full(1, dtype="uint8")]},
     r"bits has shape \(1,\), expected \[\(n\+7\)/8\] with n=9"),
    # types
    ("lstm_cell", lstm(inputs=[full(3, 8), full(3, 2, dtype="float16")]), "c has type float16, expected float32 as"),
    ("lstm_cell", lstm(inputs=[full(3, 8, dtype="int32"), full(3, 2)]),
     r"pre has type int32 \(4\), expected float32 or float16"),
    ("lstm_cell", lstm(inputs=[full(3, 8, dtype="float64"), full(3, 2)]), "input 0 has type float64, expected one of"),
    ("lstm_cell", lstm(outputs=[full(3, 2), full(3, 2, dtype="float16")]), "c' has type float16, expected float32"),
    ("attention", attention(lengths=full(2, dtype="uint8")), "lengths has type uint8 .* float32, float16 or int32"),
    ("relu", {"inputs": [full(8)], "outputs": [full(8), full(1)]}, r"bits has type float32 \(0\), expected uint8"),
    ("attention", {**attention(), "outputs": [full(2, 3, 6), full(2, 3, dtype="float16")]},
     r"lse has type float16 \(2\), expected float32"),
    # data
    ("lstm_cell", lstm(inputs=[None, full(3, 2)]), r"pre\[B,4H\] is needed, got no data"),
    ("lstm_cell", lstm(outputs=[full(3, 2), None], req=[1, 1]), r"c'\[B,H\] is needed, got no data"),
    ("lstm_cell", lstm(inputs=[misaligned(3, 8), full(3, 2)]), "pre is at .*, expected a multiple of the 4 bytes"),
    ("lstm_cell", lstm(outputs=[full(3, 2), misaligned(3, 2)]), "c' is at .*, expected a multiple of the 4 bytes"),
    ("lstm_cell", lstm(inputs=[full(8, 3).T, full(3, 2)]), r"input 0, shape \(3, 8\), is not dense"),
    ("lstm_cell", lstm(inputs=[[[1.0]], full(3, 2)]), "input 0 is a list, expected a NumPy array or one on a CUDA"),
    ("mlp_score", {"inputs": [full(2, 3, 4), full(2, 4), full(4), full(4), None], "outputs": [full(2, 3)],
                   "params": (0.0,)}, "gamma came without beta, expected both or neither"),
    ("mlp_score", {"inputs": [full(2, 3, 4), full(2, 4), full(4), None, full(4)], "outputs": [full(2, 3)],
                   "params": (0.0,)}, "beta came without gamma, expected both or neither"),
    # reqs
    ("lstm_cell", lstm(req=[WRITE, 2]), r"c' has req 2, expected 0 \(skip\), 1 \(write\) or 3 \(add\)"),
    ("lstm_cell", lstm(req=[ADD, WRITE]), "h cannot be added to: only floating gradients can"),
    ("sequence_reverse_grad", {"inputs": [full(2, 3, 1), None, full(3, dtype="int32"), None],
                               "outputs": [full(2, 3, 1), full(3, dtype="int32")], "req": [ADD, ADD]},
     "dlengths cannot be added to"),
    # parameters
    ("layer_norm", {"inputs": [full(2, 3), full(3), full(3)], "outputs": [full(2, 3)], "params": (-1.0,)},
     "eps is -1, expected a finite number that is not negative"),
    ("attention", {**attention(), "params": (float("nan"), 0, 0, 0)}, "scale is -?nan, expected a finite number"),
    ("bias_act", {"inputs": [full(2, 3), full(3)], "outputs": [full(2, 3)], "params": (5.0,)},
     "act is 5, expected 0 relu, 1 sigmoid, 2 tanh, 3 softrelu or 4 none"),
    ("bias_act", {"inputs": [full(2, 3), full(3)], "outputs": [full(2, 3)], "params": (0.5,)}, "act is 0.5, expected"),
    ("dropout", {"inputs": [full(8)], "outputs": [full(8), full(1, dtype="uint8")], "params": (0.5, -1.0, 0.0)},
     r"seed is -1, expected an integer from 0 to 2\^53 - 1"),
    ("dropout", {"inputs": [full(8)], "outputs": [full(8), full(1, dtype="uint8")], "params": (0.5, 0.0, 0.5)},
     "offset is 0.5, expected an integer"),
    ("lstm_cell", lstm(backend="tpu"), "there is no backend 'tpu', expected 'cpu' or 'cuda'"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "arguments", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_calls(kernel: str, arguments: dict[str, Any], message: str) -> None:
    arrays = [array for array in arguments["outputs"] if array is not None]
    before = [array.copy() for array in arrays]
    with pytest.raises(KernelError, match=message) as caught:
        call(kernel, **arguments)
    assert isinstance(caught.value, EchoError)
    for array, was in zip(arrays, before):
        assert np.array_equal(array, was), "something was written"


def test_read_only_outputs() -> None:
    output = full(3, 2)
    output.flags.writeable = False
    with pytest.raises(KernelError, match="output 1 is read-only"):
        call("lstm_cell", **lstm(outputs=[full(3, 2), output]))


def test_right_calls_pass() -> None:
    call("lstm_cell", **lstm())
    call("attention", **attention(lengths=full(2, dtype="int32")))


@pytest.mark.parametrize("name", SPECS)
def test_workspace_too_small_or_out_of_line_is_refused(name: str) -> None:
    """Of the size that the kernel asks for, with and without data; a smaller one is refused, and one out of line."""
    case = draw(name, SMALL[name])
    outputs = run_forward(case, call)
    calls: list[tuple[str, Sequence[Any], Sequence[Any]]] = [
        (name, case.inputs, outputs),
        (name + "_grad", [*case.heads, *case.inputs, *outputs], case.empty(case.spec.inputs, case.inputs)),
    ]
    params = tuple(case.params.values())
    for kernel, inputs, results in calls:
        size = workspace_bytes(kernel, inputs, results, params=params)
        assert size % 64 == 0
        if size == 0:
            continue
        room = np.empty(size + 128, np.uint8)
        start = -room.ctypes.data % 64
        call(kernel, inputs, results, params=params, workspace=room[start : start + size])
        with pytest.raises(KernelError, match=f"{kernel}: expected a workspace of {size} bytes, got {size - 1}"):
            call(kernel, inputs, results, params=params, workspace=room[start : start + size - 1])
        with pytest.raises(KernelError, match=f"{kernel}: the workspace is not aligned to 64 bytes"):
            call(kernel, inputs, results, params=params, workspace=room[start + 8 : start + 8 + size])


@pytest.mark.parametrize("name", SPECS)
def test_a_workspace_does_not_overflow(name: str) -> None:
    """Nothing before or after it changes, whatever it held; nor does what it held matter."""
    for dtype in ("float32", "float16"):
        case = draw(name, SMALL[name], dtype)
        outputs = run_forward(case, call)
        gradients = case.empty(case.spec.inputs, case.inputs)
        inputs, params = [*case.heads, *case.inputs, *outputs], tuple(case.params.values())
        for kernel, given, results in ((name, case.inputs, outputs), (name + "_grad", inputs, gradients)):
            size, found = workspace_bytes(kernel, given, results, params=params), []
            for filling in (0, 255):  # 255: NaNs
                room = np.full(size + 256, filling, np.uint8)
                start = -room.ctypes.data % 64 + 64
                call(kernel, given, results, params=params, workspace=room[start : start + size])
                assert (room[:start] == filling).all()
                assert (room[start + size :] == filling).all()
                found.append(b"".join(array.tobytes() for array in results if array is not None))
            assert found[0] == found[1]


def test_workspace_questions_need_no_data() -> None:
    raw = kernel_calls.raw_call("layer_norm", [full(40, 7), full(7), full(7)], [full(40, 7)], None, (0.0,))
    expected = kernel_calls.workspace_bytes_of(raw, "cpu")
    for tensors, count in ((raw.inputs, 3), (raw.outputs, 1)):
        for i in range(count):
            tensors[i].data = None
    assert kernel_calls.workspace_bytes_of(raw, "cpu") == expected > 0
    raw.inputs[1].shape[0] = 8
    with pytest.raises(KernelError, match=r"layer_norm: gamma has shape \(8,\), expected \[H\] with H=7"):
        kernel_calls.workspace_bytes_of(raw, "cpu")


def run_raw(raw: Any) -> None:
    if kernel_calls.of_backend("cpu", "call")(ctypes.byref(raw)):
        raise library._error()


def test_malformed_call_from_c_raises_kernel_error() -> None:
    def raw() -> Any:
        return kernel_calls.raw_call("lstm_cell", *[lstm()[part] for part in ("inputs", "outputs", "req", "params")])

    changed = raw()
    run_raw(changed)
    changed.kernel = None
    with pytest.raises(KernelError, match="there is no kernel NULL"):
        run_raw(changed)
    for part in ("inputs", "outputs", "req"):
        changed = raw()
        setattr(changed, part, None)
        with pytest.raises(KernelError, match=r"lstm_cell: expected 2 .*, got a null pointer"):
            run_raw(changed)
    for shape in ((-1, 8), (2**62, 8), (2**40, 2**40)):
        changed = raw()
        changed.inputs[0].shape[0], changed.inputs[0].shape[1] = shape
        with pytest.raises(KernelError, match=r"lstm_cell: pre .*shape"):
            run_raw(changed)
    changed = raw()
    changed.inputs[0].ndim = 6
    with pytest.raises(KernelError, match="pre has 6 axes, expected 2"):
        run_raw(changed)
    changed = raw()
    changed.inputs[0].dtype = 1
    with pytest.raises(KernelError, match=r"pre has type an unknown type \(1\)"):
        run_raw(changed)


def test_empty_tensors_need_no_data() -> None:
    raw = kernel_calls.raw_call("lstm_cell", [full(0, 8), full(0, 2)], [full(0, 2), full(0, 2)], None, ())
    for i in range(2):
        raw.inputs[i].data = raw.outputs[i].data = None
    run_raw(raw)


def test_unread_tensors_may_hold_anything() -> None:
    """A tensor that a gradient does not read may be absent or of the wrong type."""
    case = draw("relu", SMALL["relu"])
    y, bits = run_forward(case, call)
    expected, got = np.empty_like(y), np.empty_like(y)
    call("relu_grad", [case.heads[0], None, case.inputs[0], y, bits], [expected])
    call("relu_grad", [case.heads[0], None, None, y.astype(np.int32), bits], [got])
    assert np.array_equal(got, expected)


def test_sums_over_nothing_are_zeros() -> None:
    """Gradients of what all rows share, where there are no rows; added to, they stay as they are."""
    keys, query, v, gamma, beta = full(0, 5, 7), full(0, 7), full(7), full(7), full(7)
    dv, dgamma, dbeta = full(7), full(7), full(7)
    tensors = [full(0, 5), keys, query, v, gamma, beta, None]
    call("mlp_score_grad", tensors, [None, None, dv, dgamma, dbeta], [SKIP, SKIP, WRITE, ADD, WRITE], (0.0,))
    assert not dv.any()
    assert not dbeta.any()
    assert (dgamma == 1).all()


def test_errors_belong_to_their_thread() -> None:
    with pytest.raises(KernelError):
        call("no_such", **lstm())
    found: list[str] = []

    def other() -> None:
        found.append(library._error().args[0])
        with pytest.raises(KernelError):
            call("another", **lstm())
        found.append(library._error().args[0])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == ["", "there is no kernel another"]
    assert library._error().args[0] == "there is no kernel no_such"


def test_a_missing_library(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo.kernels.__path__", [str(tmp_path)])
    library.kernels_library.cache_clear()
    with pytest.raises(NativeError, match=r"libecho_kernels.so is not installed; it is built by a C\+\+ compiler"):
        library.kernels_library()
    (tmp_path / "libecho_kernels.so").write_bytes(b"\x7fELF\x02" + bytes(20))
    with pytest.raises(NativeError, match=r"libecho_kernels\.so cannot be loaded, reinstall mxnet-echo"):
        library.kernels_library()
    monkeypatch.undo()
    library.kernels_library.cache_clear()
    assert library.kernels_library()
