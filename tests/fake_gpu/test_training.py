"""Programs that train on GPU contexts: nothing breaks, and each bind gets a plan."""

from __future__ import annotations

import contextlib
from typing import Any, Sequence

import mxnet as mx
import numpy as np
import pytest

import echo
from benchmarks.models import MODELS, SMALL, Model
from tests.fake_gpu import device

GPUS = [mx.gpu(0), mx.gpu(1)]


@pytest.fixture
def transparent() -> Any:
    """Every training symbol and block gets a plan."""
    with echo.enable(strict=True):
        yield


def batches(model: Model, count: int) -> mx.io.NDArrayIter:
    random = np.random.RandomState(0)
    arrays = {key: random.randint(0, 5, (count * shape[0], *shape[1:])).astype(np.float32)
              for key, shape in model.shapes.items()}  # fmt: skip
    labels = {key: array for key, array in arrays.items() if "label" in key}
    data = {key: array for key, array in arrays.items() if key not in labels}
    return mx.io.NDArrayIter(data, labels, batch_size=next(iter(model.shapes.values()))[0])


@pytest.mark.parametrize("contexts", [GPUS[:1], GPUS], ids=["one device", "two devices"])
@pytest.mark.parametrize("kvstore", ["local", "device"])
@pytest.mark.parametrize("name", ["lm", "nmt", "resnet50_v1"])
def test_module_on_gpus_trains_by_planned_executors(
    name: str, contexts: Sequence[mx.Context], kvstore: str, transparent: Any
) -> None:
    data = batches(SMALL[name](), len(contexts))
    names = [[one[0] for one in ones] for ones in (data.provide_data, data.provide_label)]
    module = mx.mod.Module(SMALL[name]().symbol, *names, context=list(contexts))
    module.fit(data, num_epoch=2, kvstore=kvstore, optimizer="sgd", eval_metric=mx.metric.Loss())
    executors = module._exec_group.execs
    assert [executor._ctx for executor in executors] == list(contexts)
    assert all(type(executor).__name__ == "PlannedExecutor" for executor in executors)


def seen_in_a_step(symbol: mx.sym.Symbol, model: Model, contexts: Sequence[mx.Context]) -> int:
    """The most bytes of the devices that one step of a module takes, without those of before."""
    data = batches(model, len(contexts))
    before = device.idle(*contexts)
    device.reset()
    names = [[one[0] for one in ones] for ones in (data.provide_data, data.provide_label)]
    module = mx.mod.Module(symbol, *names, context=list(contexts))
    module.bind(data.provide_data, data.provide_label)
    module.init_params()
    module.forward_backward(next(data))
    mx.nd.waitall()
    return device.peak() - before


@pytest.mark.parametrize("contexts", [GPUS[:1], GPUS], ids=["one device", "two devices"])
def test_a_module_takes_on_the_devices_what_its_plans_say(contexts: Sequence[mx.Context]) -> None:
    model = MODELS["lm"]()
    symbol = echo.optimize(model.symbol, strict=True, max_overhead=None, fuse="memory")
    with device.without_kernels():
        seen_in_a_step(symbol, model, contexts)  # the memory that a process takes once
        stock, seen = (seen_in_a_step(each, model, contexts) for each in (model.symbol, symbol))
    plans = symbol.plans[-len(contexts) :]
    saved = sum(plan.before.total - plan.after.total for plan in plans)
    assert stock - seen >= 0.95 * saved > 0


@pytest.mark.parametrize("flags", [{"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_a_static_block_takes_on_the_device_what_its_plan_says(flags: dict[str, bool]) -> None:
    options = {"max_overhead": None, "fuse": False}
    plans = []

    def seen(is_planned: bool) -> int:
        """The most bytes of the device that two steps take, without those of before."""
        before = device.idle(GPUS[0])
        device.reset()
        block = mx.gluon.model_zoo.vision.resnet18_v2(classes=10)
        block.initialize(ctx=GPUS[0])
        block.hybridize(**flags)
        data = mx.nd.zeros((16, 3, 128, 128), ctx=GPUS[0])
        if is_planned:
            plans.append(echo.plan(block, ctx=GPUS[0], data=data.shape, **options))
        with echo.enable(strict=True, **options) if is_planned else contextlib.nullcontext():
            for _ in range(2):
                with mx.autograd.record():
                    loss = block(data).sum()
                loss.backward()
        mx.nd.waitall()
        return device.peak() - before

    with device.without_kernels():
        seen(False)  # the memory that a process takes once
        saved = seen(False) - seen(True)
    assert saved >= 0.95 * (plans[0].before.total - plans[0].after.total) > 0


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
@pytest.mark.parametrize("contexts", [GPUS[:1], GPUS], ids=["one device", "two devices"])
def test_block_on_gpus_trains_with_recomputed_batch_norm(
    contexts: Sequence[mx.Context], flags: dict[str, bool], transparent: Any
) -> None:
    block = mx.gluon.model_zoo.vision.resnet18_v2(classes=10)
    block.initialize(ctx=list(contexts))
    block.hybridize(**flags)
    trainer = mx.gluon.Trainer(block.collect_params(), "sgd")
    parts = mx.gluon.utils.split_and_load(np.zeros((4, 3, 64, 64), np.float32), list(contexts))
    for _ in range(2):
        with mx.autograd.record():
            losses = [block(part).sum() for part in parts]
        mx.autograd.backward(losses)
        trainer.step(4)
    mx.nd.waitall()
    assert {plan.device for plan in block._cached_op.plans.values()} == {"gpu"}
    assert device.count("factor 0 ") > 0, "BatchNorm is recomputed"
