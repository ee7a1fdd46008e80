"""Recurrent layers, sequences, attention, products and choices by index, against MXNet."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch.operators import sequences  # noqa: E402
from tests.torch.oracle import Case, Oracle, check, numbers  # noqa: E402

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
STEPS = (4, 3, 2)  # of three samples


def _rnn(mode: str, layers: int = 1, ways: int = 1, outputs: bool = False) -> Case:
    hidden, inputs = 6, 5
    rows = GATES[mode] * hidden
    size = sum(ways * rows * ((hidden * ways if layer else inputs) + hidden + 2) for layer in range(layers))
    parameters = np.random.RandomState(2).normal(0, 0.3, size).astype(np.float32)
    inner = {"data": (4, 3, inputs), "rnn_parameters": parameters, "state": (layers * ways, 3, hidden)}
    if mode == "lstm":
        inner["state_cell"] = (layers * ways, 3, hidden)
    attrs = {
        "mode": mode,
        "state_size": hidden,
        "num_layers": layers,
        "bidirectional": ways == 2,
        "state_outputs": outputs,
    }
    return Case("RNN", inner, attrs, outputs=(3 if mode == "lstm" else 2) if outputs else 1)


def _of_lengths(op: str, axis: int = 0, **attrs: object) -> Case:
    inputs = {"data": (4, 3, 2) if axis == 0 else (3, 4, 2), "sequence_length": numbers(1, 4, 2)}
    return Case(op, inputs, {"use_sequence_length": True, "axis": axis, **attrs}, fixed=("sequence_length",))


def _chosen(op: str, index: object, data: tuple[int, ...] = (3, 4, 5), **attrs: object) -> Case:
    names = {"take": ("a", "indices"), "pick": ("data", "index"), "gather_nd": ("data", "indices")}[op]
    return Case(op, dict(zip(names, (data, index))), attrs, fixed=names[1:])


CASES = [
    *[_rnn(mode, layers, ways, outputs) for mode in GATES for layers, ways, outputs in ((1, 1, True), (2, 2, True),
         (2, 1, False))],
    *[Case(op, {"data": STEPS}) for op in ("SequenceMask", "SequenceLast", "SequenceReverse")],
    *[_of_lengths("SequenceMask", axis, value=value) for axis in (0, 1) for value in (0, -9.0)],
    *[_of_lengths("SequenceLast", axis) for axis in (0, 1)], _of_lengths("SequenceReverse"),
    Case("_contrib_interleaved_matmul_selfatt_qk", {"queries_keys_values": (5, 2, 24)}, {"heads": 2}),
    Case("_contrib_interleaved_matmul_selfatt_valatt", {"queries_keys_values": (5, 2, 24), "attention": (4, 5, 5)},
         {"heads": 2}),
    Case("_contrib_interleaved_matmul_encdec_qk", {"queries": (3, 2, 8), "keys_values": (5, 2, 16)}, {"heads": 2}),
    Case("_contrib_interleaved_matmul_encdec_valatt", {"keys_values": (5, 2, 16), "attention": (4, 3, 5)},
         {"heads": 2}),
    *[Case("dot", {"lhs": (4, 3) if a else (3, 4), "rhs": (5, 4) if b else (4, 5)}, {"transpose_a": a,
         "transpose_b": b})
      for a in (False, True) for b in (False, True)],
    Case("dot", {"lhs": (4,), "rhs": (4,)}), Case("dot", {"lhs": (2, 3, 4), "rhs": (4, 5)}),
    *[Case(op, {"lhs" if op == "batch_dot" else "A": (2, 4, 3) if a else (2, 3, 4), "rhs" if op == "batch_dot" else "B":
           (2, 5, 4) if b else (2, 4, 5)}, {"transpose_a": a, "transpose_b": b})
      for op in ("batch_dot", "_linalg_gemm2") for a in (False, True) for b in (False, True)],
    Case("_linalg_gemm2", {"A": (3, 4), "B": (4, 5)}, {"alpha": 0.5}),
    Case("Embedding", {"data": numbers([[1, 0, 9], [2, 2, 3]]), "weight": (7, 3)}, {"input_dim": 7, "output_dim": 3},
         fixed=("data",)),
    _chosen("take", numbers([[1, 0], [2, 9]])), _chosen("take", numbers(1, -1, 3), axis=1, mode="wrap"),
    _chosen("take", numbers([[1, 0], [2, 9]]), axis=-1), _chosen("take", numbers(2, 0, 2), data=(3, 4)),
    _chosen("pick", numbers([1, 0, 4, 9], [0, 0, 0, 0], [1, 2, 3, 4])),
    _chosen("pick", numbers([1, 0, 2, -1, 5]), data=(4, 5), axis=0, keepdims=True),
    _chosen("pick", numbers([1, 0, -1]), data=(3, 4), mode="wrap"),
    _chosen("gather_nd", numbers([[0, 2, 1], [3, 0, 1]])), _chosen("gather_nd", numbers([[0, 2, 1, 0]])),
    *[Case("one_hot", {"indices": numbers([[1, 0], [3, 9]])}, {"depth": 4, **attrs}, fixed=("indices",))
      for attrs in ({}, {"on_value": 2.0, "off_value": -1.0, "dtype": "int32"})],
    *[Case("topk", {"data": (3, 4, 5)}, attrs, fixed=("data",)) for attrs in ({}, {"k": 2, "axis": 1,
         "is_ascend": True})],
    Case("topk", {"data": (3, 5)}, {"k": 3, "ret_typ": "value"}),
    Case("topk", {"data": (3, 5)}, {"k": 3, "ret_typ": "both"}, outputs=2),
    *[Case(op, {"data": (3, 5)}, attrs, fixed=("data",) * (op == "argsort")) for op in ("sort", "argsort")
      for attrs in ({"axis": -1}, {"axis": 0, "is_ascend": False})],
    Case("sort", {"data": (3, 5)}, {"axis": None}, fixed=("data",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_has_mxnet_values_and_gradients(oracle: Oracle, case: Case) -> None:
    check(oracle, case)


def test_every_operator_has_a_case() -> None:
    assert set(sequences.OPERATORS) == {case.op for case in CASES}


def test_state_of_an_unknown_batch_is_that_of_the_data() -> None:
    parameters = torch.randn(3 * (2 + 3 + 2))
    data = torch.randn(4, 5, 2)
    options = {"state_size": 3, "num_layers": 1, "mode": "rnn_tanh", "training": False}
    output, state = sequences.rnn(data, parameters, torch.zeros(1, 1, 3), **options)
    assert torch.equal(output, sequences.rnn(data, parameters, torch.zeros(1, 5, 3), **options)[0])
    assert (output.shape, state.shape) == ((4, 5, 3), (1, 5, 3))
