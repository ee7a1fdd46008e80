"""When the fuzzer holds a difference to be echo's own, and when MXNet's results are no better."""

from __future__ import annotations

import contextlib
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
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


def test_value_that_differs_in_a_second_run_is_undefined() -> None:
    with pytest.raises(Undefined, match="step 0: output 0"):
        judged(0.6, again=[0.5, 0.51])
    assert judged(0.6, again=[0.5])


def test_nudged_values_explain_what_is_not_much_more() -> None:
    with pytest.raises(Undefined):
        judged(0.6, nudged=[0.5, 0.474])
    assert judged(0.6, nudged=[0.5, 0.476])
    assert judged(0.50003, nudged=[0.50001]), "a nudged run may differ by as little as fused operators may"


def test_the_nearer_to_float64_is_right() -> None:
    for exact in (0.6, 0.55, 0.54):  # rounding by chance may be twice as far off
        with pytest.raises(Undefined):
            judged(0.6, exact=[exact])
    for exact in (0.5, 0.53):
        assert judged(0.6, exact=[exact])


def test_a_number_that_was_lost_is_wrong_whatever_float64_gives() -> None:
    assert judged(np.nan, exact=[0.9])


def test_numbers_too_large_for_the_type_are_undefined() -> None:
    with pytest.raises(Undefined):
        judged(np.nan, np.inf, exact=[1e39])
    for exact in (3e38, np.inf):
        assert judged(np.nan, np.inf, exact=[exact])


def test_training_is_over_with_nans_in_the_gradients() -> None:
    first, second = ({"output 0": np.ones(1), "gradient x": np.array([value])} for value in (1.0, np.nan))
    for before, over in (([second], True), ([first], False), ([], False)):
        mine, its = ([*before, {"output 0": np.array([value])}] for value in (np.nan, 0.0))
        wrong = training.differences(mine, its, True)
        assert list(wrong) == [f"step {len(before)}: output 0"]
        with pytest.raises(Undefined) if over else contextlib.nullcontext():
            assert verdict(wrong, mine, its, (), (), ())


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
    lines = (
        argument("data0", (3, 2, 4)),
        Line("rnn.LSTM(5)@({0})", (0,), (3, 2, 5)),
        Line("nn.Dropout(0.4)@({0})", (1,), (3, 2, 5)),
        Line("rnn.GRUCell(4)@.unroll(3, {0}, layout='TNC', merge_outputs=True)[0]", (2,), (3, 2, 4)),
        Line("nn.Dense(3, flatten=False)@({0})", (3,), (3, 2, 3)),
    )
    program = Program(lines, (4,))
    (exact,) = blocks._exact(program)
    expected = blocks.stock_run(program)
    for name, array in exact[0].items():
        assert array.dtype == np.float64 or name == "random stream"
        assert training.largest(expected[0][name], array) < 1e-5, name


def test_dropout_draws_the_same_in_float64() -> None:
    scores = "mx.sym.softmax(mx.sym.batch_dot({0}, {1}, transpose_b=True))"
    lines = (
        argument("data0", (3, 4, 5)),
        Line("mx.sym.Dropout({0}, p=0.4)", (0,), (3, 4, 5)),
        Line(f"mx.sym.batch_dot(mx.sym.Dropout({scores}, p=0.3, mode='always', axes=(0,)), {{1}})", (0, 1), (3, 4, 5)),
        Line("mx.rnn.DropoutCell(0.3).unroll(3, inputs={0}, layout='TNC', merge_outputs=True)[0]", (2,), (3, 4, 5)),
    )
    program = Program(lines, (1, 2, 3), how={"steps": 3, "predicts": 1})
    (exact,) = symbols._exact(program)
    for step, expected in zip(exact, training.train(symbols.symbol_of(program), {}, program.how)):
        for name, array in step.items():
            assert array.dtype == np.float64 or name == "random stream"
            assert training.largest(expected[name], array) < 1e-6, name


@pytest.mark.slow
def test_a_gradient_of_many_terms_is_asked_for_in_another_process() -> None:
    """MXNet computes another one here, of an array that is an output, too, than where it adds up in one way only."""
    dots = "mx.sym.batch_dot({}, {{0}}, transpose_b=True)"
    closed = f"-1e9 * {dots.format('mx.sym.flip({0}, axis=0)')}.ones_like()"
    scores = f"mx.sym.where({dots.format('2 * {0}')} > 0.1, {dots.format('{0}')}, {closed})"
    cell = "mx.rnn.LSTMCell(16, prefix='lstm_').unroll(4, inputs=mx.sym.flip({0}, axis=0), merge_outputs=False)[0][-1]"
    lines = (argument("x", (4, 4, 8)), Line(f"mx.sym.batch_dot(mx.sym.softmax({scores}), {{0}})", (0,), (4, 4, 8)),
             Line(cell, (1,), (4, 16)))  # fmt: skip
    program = Program(lines, (0, 2))
    symbol = symbols.symbol_of(program)
    assert symbols._most_readers(symbol) >= symbols._IN_PLACE
    *_, other = symbols._others(symbol, program)
    assert list(training.differences(other, training.train(symbol, {}, {}), True)) == ["step 0: gradient x"]
    got = training.train(echo.optimize(symbol, fuse=True), {}, {})
    assert not training.differences(got, other, True)


@pytest.mark.parametrize("code", ["mx.sym.Dropout(mx.sym.Cast({0}, dtype='float64'), p=0.4)",
                                  "mx.sym.Cast({0}, dtype='float16')",
                                  "{0} + mx.sym.random.uniform(0, 0.1, shape=(2, 3))"])  # fmt: skip
def test_random_and_float16_programs_are_not_comparable(code: str) -> None:
    lines = (argument("data0", (2, 3)), Line(code, (0,), (2, 3)))
    assert not comparable(Program(lines, (1,)))
    assert comparable(Program(lines, (0,)))


def test_graphs_inside_of_nodes_are_changed() -> None:
    data = mx.sym.var("data", shape=(3, 2), dtype="float32")
    state = mx.sym.var("state", shape=(2,), dtype="float32")
    outputs, _ = mx.sym.contrib.foreach(lambda x, s: (mx.sym.Cast(x, dtype="float32") + s, s), data, state)
    assert symbol_in_float64(outputs).infer_type()[1] == [np.float64]
    assert program_in_float64(Program((argument("x", (1,)),), (0,))).lines[0].dtype == "float64"
