"""When the fuzzer holds a difference to be echo's own, and when MXNet's results are no better."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from fuzz import blocks, symbols, training
from fuzz.exact import comparable, program_in_float64, symbol_in_float64
from fuzz.judgement import verdict
from fuzz.operators import SEQUENCE
from fuzz.outcome import Undefined
from fuzz.program import Line, Program, argument


def run_of(value: float, kind: str = "float32") -> Any:
    """A run of one step with one output, whose largest element is 1."""
    return [{"output 0": np.array([1, value], kind)}]


def judged(got: float, expected: float = 0.5, again: Any = (), nudged: Any = (), exact: Any = ()) -> str:
    mine, its = run_of(got), run_of(expected)
    wrong = training.differences(mine, its, True)
    runs = [[run_of(value) for value in values] for values in (again, nudged)]
    return verdict(wrong, mine, its, *runs, [run_of(value, "float64") for value in exact])


def test_difference_is_told() -> None:
    assert judged(0.6) == "step 0: output 0: 1.0e-01 of the largest element"


def test_what_differs_in_another_run_of_the_same_is_undefined() -> None:
    with pytest.raises(Undefined, match="step 0: output 0"):
        judged(0.6, again=[0.5, 0.51])
    assert judged(0.6, again=[0.5])


def test_nudged_values_explain_what_is_not_much_more() -> None:
    with pytest.raises(Undefined):
        judged(0.6, nudged=[0.5, 0.474])
    assert judged(0.6, nudged=[0.5, 0.476])
    assert judged(0.50003, nudged=[0.50001]), "a nudged run may differ by as little as fused operators may"


def test_the_nearer_to_float64_is_right() -> None:
    for exact in (0.6, 0.56, 0.55):
        with pytest.raises(Undefined):
            judged(0.6, exact=[exact])
    for exact in (0.5, 0.54):
        assert judged(0.6, exact=[exact])


def test_a_number_that_was_lost_is_wrong_whatever_float64_gives() -> None:
    assert judged(np.nan, exact=[0.9])


def test_zeros_of_rounded_gates_are_no_difference() -> None:
    """MXNet takes a gate that is nearly 1 from 1, and finds 0; echo may find as much as that rounds by, 6e-8 here."""
    its = [{"output 0": np.ones(2, "float32"), "gradient x": np.zeros(2, "float32")}]
    mine = [{**its[0], "gradient x": np.array([5e-8, 0], "float32")}]
    assert not training.differences(mine, its, True)
    assert training.differences(mine, its, False)
    for value in (7e-8, np.nan):
        mine[0]["gradient x"][0] = value
        assert training.differences(mine, its, True)
    its[0]["gradient x"][:], mine[0]["gradient x"][:] = (0, 1e-9), (1e-10, 5e-9)
    assert not training.differences(mine, its, True)
    its[0]["gradient x"][1] = 7e-8
    assert training.differences(mine, its, True)


def test_one_doubtful_array_does_not_excuse_another() -> None:
    mine, its, nudged = ([{"output 0": np.array([1, a]), "output 1": np.array([1, b])}]
                         for a, b in ((0.6, 0.6), (0.5, 0.5), (0.6, 0.5)))  # fmt: skip
    assert verdict(training.differences(mine, its, True), mine, its, (), [nudged], ())


def test_symbol_in_float64_is_the_same_on_the_same_values() -> None:
    cell = "mx.rnn.LSTMCell(8, prefix='lstm_').unroll(3, inputs={0}, layout='TNC', merge_outputs=True)[0]"
    words = "mx.sym.Embedding(var('below9_words', shape=(3, 2), dtype='float32'), input_dim=9, output_dim=4)"
    cast = "mx.sym.Cast({0}, dtype='float32')"
    scores = "mx.sym.contrib.interleaved_matmul_selfatt_qk(mx.sym.Concat({0}, {0}, {0}, dim=2), heads=1)"
    assert scores in SEQUENCE
    lines = (Line(words), Line(cell, (0,), (3, 2, 8)), Line(cast, (1,), (3, 2, 8)), Line(scores, (2,)))
    program = Program(lines, (2, 3), how={"magnitude": 300})
    expected = training.train(symbols.symbol_of(program), {}, program.how)
    (exact,) = symbols._exact(program)
    for name, array in exact[0].items():
        assert array.dtype == np.float64 or name == "random stream"
        assert training.largest(expected[0][name], array) < 1e-5, name


def test_block_in_float64_is_the_same_on_the_same_values() -> None:
    lines = (argument("data0", (3, 2, 4)), Line("rnn.LSTM(5)@({0})", (0,), (3, 2, 5)))
    cell = Line("rnn.GRUCell(4)@.unroll(3, {0}, layout='TNC', merge_outputs=True)[0]", (1,), (3, 2, 4))
    program = Program((*lines, cell, Line("nn.Dense(3, flatten=False)@({0})", (2,), (3, 2, 3))), (3,))
    (exact,) = blocks._exact(program)
    expected = blocks.stock_run(program)
    for name, array in exact[0].items():
        assert array.dtype == np.float64 or name == "random stream"
        assert training.largest(expected[0][name], array) < 1e-5, name


@pytest.mark.parametrize("code", ["mx.sym.Dropout({0}, p=0.4)", "mx.sym.Cast({0}, dtype='float16')",
                                  "{0} + mx.sym.random.uniform(0, 0.1, shape=(2, 3))"])  # fmt: skip
def test_what_float64_does_not_tell(code: str) -> None:
    lines = (argument("data0", (2, 3)), Line(code, (0,), (2, 3)))
    assert not comparable(Program(lines, (1,)))
    assert comparable(Program(lines, (0,)))


def test_graphs_inside_of_nodes_are_changed() -> None:
    data = mx.sym.var("data", shape=(3, 2), dtype="float32")
    state = mx.sym.var("state", shape=(2,), dtype="float32")
    outputs, _ = mx.sym.contrib.foreach(lambda x, s: (mx.sym.Cast(x, dtype="float32") + s, s), data, state)
    assert symbol_in_float64(outputs).infer_type()[1] == [np.float64]
    assert program_in_float64(Program((argument("x", (1,)),), (0,))).lines[0].dtype == "float64"
