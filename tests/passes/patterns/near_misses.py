"""What nearly is a pattern: pieces of symbols, and what the patterns say of them."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import mxnet as mx

from echo.frontend.symbols import graph_of
from echo.ir.graph import Setting
from echo.passes.patterns.apply import find

H, T = 4, 3
Symbol = mx.sym.Symbol
Miss = Tuple[Callable[[], Symbol], str]  # a symbol, and how the reason begins
sigmoid, tanh = mx.sym.sigmoid, mx.sym.tanh


def var(name: str) -> Symbol:
    return mx.sym.var(name)


def dense(x: Symbol, size: int, name: str, **more: Any) -> Symbol:
    return mx.sym.FullyConnected(x, num_hidden=size, name=name, **more)


def same(x: Symbol) -> Symbol:
    return x


def normalized(x: Symbol) -> Symbol:
    return mx.sym.LayerNorm(x, name="norm")


def dropped(x: Symbol) -> Symbol:
    return mx.sym.Dropout(x, p=0.3, name="drop")


def found_in(build: Callable[[], Symbol]) -> tuple[list[str], list[str]]:
    with mx.name.NameManager():
        found, missed = find(graph_of(build()), setting=Setting(onednn_norm=True))
    return [fusion.pattern for fusion in found], [miss.reason for miss in missed]


def assert_missed(miss: Miss) -> None:
    """The pattern is not found, and the reason is given."""
    build, reason = miss
    found, missed = found_in(build)
    assert set(found) <= {"layer_norm", "dropout", "relu"}, "which are fused by themselves"
    assert any(each.startswith(reason) for each in missed), missed


def assert_found(build: Callable[[], Symbol], pattern: str) -> None:
    """The pattern is found once, and nothing else is found or nearly found."""
    assert found_in(build) == ([pattern], [])


def assert_nothing(build: Callable[[], Symbol]) -> None:
    """Nothing alike, so nothing is said, but of biases."""
    found, missed = found_in(build)
    assert not found
    assert all("may be a bias" in reason for reason in missed)
