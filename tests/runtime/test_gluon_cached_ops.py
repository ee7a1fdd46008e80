"""Which CachedOps are planned: those that are made while plans are requested, by this thread."""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterator

import mxnet as mx
import pytest

from echo.plans.options import Options
from echo.runtime.cached_op import PlannedCachedOp, StockCachedOp
from echo.runtime.gluon import cached_op, planned_by
from echo.runtime.patches import PATCHES
from echo.system.threads import own_binds


def attempt(action: Callable[[Options], Any], stock: Callable[[], Any]) -> Any:
    return action(Options())


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    yield
    PATCHES.switch(None)
    PATCHES.take_out(mx.nd, "CachedOp")


def kind() -> type:
    x = mx.sym.var("x")
    return type(mx.nd.CachedOp(mx.sym.tanh(mx.sym.exp(mx.sym.sin(x)))))


def test_cached_ops_of_the_block_alone_are_planned() -> None:
    assert kind() is StockCachedOp
    seen: list[type] = []
    with planned_by(attempt):
        assert kind() is PlannedCachedOp
        with own_binds():
            assert kind() is StockCachedOp, "echo plans none of its own"
        other = threading.Thread(target=lambda: seen.append(kind()))
        other.start()
        other.join()
    assert seen == [StockCachedOp]
    assert kind() is StockCachedOp
    assert mx.nd.CachedOp is cached_op


def test_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.nd, "CachedOp", cached_op)
    assert kind() is StockCachedOp
    PATCHES.switch(attempt)
    assert kind() is PlannedCachedOp
    PATCHES.switch(None)
    assert kind() is StockCachedOp


def test_given_up_planning_makes_mxnets_cached_op() -> None:
    with planned_by(lambda action, stock: stock()):
        assert kind() is StockCachedOp
