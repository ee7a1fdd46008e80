"""`echo.profile`: what it says is what MXNet binds, to the byte."""

from __future__ import annotations

import os
import re
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import OptionError
from echo.ir.training_graph import Runner
from tests.support.cases import any_case

pytestmark = pytest.mark.usefixtures("cheap_planning")


def _bound_megabytes(symbol: Any, model: Any) -> int:
    executor = symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes)
    total = re.search(r"Total (\d+) MB allocated", executor.debug_str())
    assert total is not None
    return int(total[1])


def _given_bytes(executor: mx.executor.Executor) -> int:
    arrays = [*executor.arg_arrays, *executor.grad_arrays, *executor.aux_arrays]
    return sum(array.size * array.dtype().itemsize for array in arrays if array is not None)


@pytest.mark.every(9)
@pytest.mark.parametrize("name", SMALL)
def test_the_sum_is_what_mxnet_plans_and_the_arrays(name: str) -> None:
    model = SMALL[name]()
    profile = echo.profile(model.symbol, compare=("echo", "mirror"), **model.shapes)
    plan = echo.plan(model.symbol, **model.shapes)
    stock, planned = profile.usages["stock"], profile.usages["echo"]
    assert (stock.planned, planned.planned) == (plan.before.planned, plan.after.planned)
    assert (stock.total, planned.total) == (plan.before.total, plan.after.total)
    executor = model.symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes)
    for usage in profile.usages.values():
        assert sum(usage.by_kind.values()) == usage.total
        assert usage.total - usage.planned - sum(usage.beside.values()) == _given_bytes(executor)
    assert _bound_megabytes(model.symbol, model) == stock.planned >> 20
    assert _bound_megabytes(echo.optimize(model.symbol), model) == planned.planned >> 20


def test_mirror_is_what_mxnet_does_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SMALL["nmt"]()
    mirrored = echo.profile(model.symbol, compare="mirror", **model.shapes).usages["mirror"]
    assert any(tensor.kind == "recomputed maps" for tensor in mirrored.tensors)
    monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", "1")
    assert _bound_megabytes(model.symbol, model) == mirrored.planned >> 20


def test_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXNET_BACKWARD_DO_MIRROR", raising=False)
    case = any_case("slices")
    shapes = dict(zip(case.symbol.list_arguments(), case.binding.arg_shapes))
    echo.profile(case.symbol, compare=("mirror",), grad_req="write", **shapes)
    assert "MXNET_BACKWARD_DO_MIRROR" not in os.environ


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}], ids=str)
def test_profile_of_a_block_sums_to_its_plan(flags: dict[str, bool]) -> None:
    net = mx.gluon.nn.HybridSequential()
    with net.name_scope():
        for _ in range(3):
            net.add(mx.gluon.nn.Dense(64, activation="tanh"), mx.gluon.nn.Dropout(0.3))
    net.initialize()
    net.hybridize(**flags)
    profile = echo.profile(net, data=(32, 64), max_overhead=None)
    assert profile.plan.key.runner == {0: Runner.DYNAMIC, 1: Runner.STATIC, 2: Runner.SHAPED}[len(flags)]
    for name, memory in (("stock", profile.plan.before), ("echo", profile.plan.after)):
        usage = profile.usages[name]
        assert usage.total == memory.total == sum(usage.by_kind.values())
    assert profile.usages["echo"].planned < profile.usages["stock"].planned


def test_optimizer_states_count_next_to_the_arrays() -> None:
    model = SMALL["lm"]()
    profile = echo.profile(model.symbol, optimizer_states=2, **model.shapes)
    for usage in profile.usages.values():
        assert usage.beside["optimizer states"] == 2 * usage.by_kind["weights"]


@pytest.mark.parametrize("compare", ["nothing", ("echo", "torch")])
def test_names_that_are_not_known(compare: Any) -> None:
    with pytest.raises(OptionError, match="compare: expected some of echo, mirror, got"):
        echo.profile(SMALL["lm"]().symbol, compare=compare, **SMALL["lm"]().shapes)
