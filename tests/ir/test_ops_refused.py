"""Dropout runs twice with its mask alone; what draws or writes into inputs must not be recomputed."""

from __future__ import annotations

import itertools
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import OptionError
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.ir.training_node import why_not_recomputable
from tests.support.operator_builds import (
    BUILDS,
    Build,
    check,
    column,
    contrib,
    image,
    node_under,
    run,
    symbol_with,
    unary,
)
from tests.support.training import assert_same, recomputing

Symbol = mx.sym.Symbol


# Dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("attrs", [{"p": 0.3}, {"p": 0.9}, {"p": 0.5, "mode": "always"}])
def test_dropout_is_recomputed_from_its_mask(attrs: dict[str, Any], dtype: str) -> None:
    build = unary(mx.sym.Dropout, **attrs)
    check(build, dtype)
    got, graph = run(recomputing(symbol_with(build, dtype), {"under": [0]}), dtype)
    assert "Op:elemwise_mul, Name=under_echo\n" in graph
    dropped = (got["step 0: gradient probe0"] == 0).mean()
    assert abs(dropped - attrs["p"]) < 0.1  # 576 elements: five standard deviations


def test_dropouts_in_a_chain_of_recomputed_maps() -> None:
    def build(x: Symbol, y: Symbol, name: str) -> Symbol:
        h = mx.sym.Dropout(mx.sym.tanh(x, name="h0"), p=0.4, name="h1")
        h = mx.sym.LayerNorm(mx.sym.elemwise_add(h, y, name="h2"), name="h3")
        return mx.sym.tanh(mx.sym.Dropout(h, p=0.2, name="h4"), name=name)

    symbol = symbol_with(build)
    expected, _ = run(symbol)
    for count in range(1, 6):
        for names in itertools.combinations(["h0", "h1", "h2", "h3", "h4", "under"], count):
            got, _ = run(recomputing(symbol, {name: [0] for name in names}))
            assert_same(got, expected)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"p": 0.0}, "p=0 makes no mask"),
        ({"p": 0.5, "axes": (0,)}, "mask of another shape"),
        ({"p": 0.5, "axes": (0, 1)}, "mask of another shape"),
    ],
)
def test_dropout_without_a_whole_mask_is_refused(attrs: dict[str, Any], reason: str) -> None:
    symbol = symbol_with(unary(mx.sym.Dropout, **attrs))
    node = node_under(symbol)
    assert reason in why_not_recomputable(node, "cpu", hook=True)
    with pytest.raises(OptionError, match=f"'under' .Dropout. cannot be recomputed: .*{reason}"):
        echo.plan(symbol, data=(8, 72), recompute="under", policy="echo")


def test_dropout_needs_the_hook() -> None:
    assert "native hook" in why_not_recomputable(node_under(symbol_with(unary(mx.sym.Dropout))), "cpu", hook=False)


# What must not be recomputed ---------------------------------------------------------------------------------------


UNSAFE: dict[str, Build] = {
    "_random_uniform": lambda x, y, name: mx.sym.random.uniform(shape=(8, 72), name=name),
    "_random_normal_like": lambda x, y, name: mx.sym.random.normal_like(x, name=name),
    "_sample_uniform": lambda x, y, name: mx.sym.sample_uniform(
        mx.sym.reshape(column(x), shape=(-1,)), 2 + mx.sym.reshape(column(y), shape=(-1,)), shape=(4,), name=name
    ),
    # stock MXNet crashes when it runs this one, so it is planned here and never run
    "random LeakyReLU": unary(mx.sym.LeakyReLU, act_type="rrelu"),
}


@pytest.mark.parametrize("op", UNSAFE)
@pytest.mark.parametrize("hook", [True, False])
def test_random_operators_are_refused(op: str, hook: bool) -> None:
    symbol = symbol_with(UNSAFE[op])
    node = node_under(symbol)
    assert why_not_recomputable(node, "cpu", hook)


# MXNet does not say that the random LeakyReLU is random: only the planner knows.
@pytest.mark.parametrize("op", [op for op in UNSAFE if op.startswith("_")])
def test_the_hook_refuses_random_operators_by_itself(op: str) -> None:
    symbol = symbol_with(UNSAFE[op])
    with pytest.raises(mx.MXNetError, match=r"'under' .* draws random numbers"):
        run(recomputing(symbol, {"under": [0]}))


def test_mxnet_goes_on_after_a_refusal() -> None:
    symbol = symbol_with(UNSAFE["_random_uniform"])
    expected, _ = run(symbol)
    for _ in range(3):
        with pytest.raises(mx.MXNetError, match="draws random numbers"):
            run(recomputing(symbol, {"under": [0]}))
        assert_same(run(symbol)[0], expected)


@pytest.mark.parametrize("op", UNSAFE)
def test_the_user_cannot_insist_on_random_operators(op: str) -> None:
    with pytest.raises(OptionError, match=r"'under' .* cannot be recomputed"):
        echo.plan(symbol_with(UNSAFE[op]), data=(8, 72), recompute="under", policy="echo")


def test_the_hook_refuses_operators_that_write_into_inputs() -> None:
    build = image(contrib.SyncBatchNorm, key="key", ndev=1)  # writes its moving statistics, forward or backward
    with pytest.raises(mx.MXNetError, match=r"'under' .* writes into its inputs"):
        run(recomputing(symbol_with(build), {"under": [0]}))


def test_malformed_plan_attributes_are_refused() -> None:
    symbol = symbol_with(BUILDS["tanh"])
    for text in ("1", "0,7", "x", "0;1", "-1", "+0", " 0", "00000000000", "0,0", "99999999999999999999"):
        graph = graph_of(symbol)
        number = next(number for number, node in enumerate(graph.nodes) if node.name == "under")
        marked = symbol_of(graph.with_attrs({number: {PLAN_ATTRIBUTE: text}}))
        with pytest.raises(mx.MXNetError, match="'under': expected ascending output numbers below 1"):
            run(marked)
