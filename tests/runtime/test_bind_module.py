"""Optimized symbols in Module and BucketingModule: the bits, files and checkpoints of the user's own symbol."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.runtime.bind import OptimizedSymbol
from tests.support.bound_network import BATCH, LOW_BOUND, SHAPES, network, was_planned
from tests.support.training import Record, assert_same

Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")


# Module ------------------------------------------------------------------------------------------------------------


def batches(count: int, batch: int = BATCH) -> Iterator[mx.io.DataBatch]:
    generator = np.random.RandomState(0)
    for _ in range(count):
        data = mx.nd.array(generator.normal(0, 1, (batch, *SHAPES["data"][1:])))
        yield mx.io.DataBatch([data], [mx.nd.array(generator.randint(0, 10, batch))])


def module(symbol: Symbol, **more: Any) -> mx.mod.Module:
    found = mx.mod.Module(symbol, label_names=["label"], context=more.pop("context", mx.cpu()), **more)
    found.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])])
    mx.random.seed(1)
    np.random.seed(1)
    found.init_params(mx.init.Xavier())
    found.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.05, "momentum": 0.9})
    return found


def fitted(symbol: Symbol, **more: Any) -> Record:
    """Two epochs of training with a validation after each; scores, probabilities and parameters."""
    trained = module(symbol, **more)
    seen = {}
    for epoch in range(2):
        metric = mx.metric.CrossEntropy()
        mx.random.seed(epoch)
        for batch in batches(4):
            trained.forward_backward(batch)
            trained.update()
            trained.update_metric(metric, batch.label)
        seen[f"{epoch} loss"] = np.array(metric.get()[1])
        for number, batch in enumerate(batches(2)):
            trained.forward(batch, is_train=False)
            seen[f"{epoch} prediction {number}"] = trained.get_outputs()[0].asnumpy()
        mx.nd.waitall()
        args, aux = trained.get_params()
        seen.update({f"{epoch} {name}": array.asnumpy() for name, array in {**args, **aux}.items()})
    return seen


def test_module_trains_to_stocks_bits(optimized: OptimizedSymbol) -> None:
    got, expected = fitted(optimized), fitted(network())
    assert expected["0 loss"] != expected["1 loss"]
    assert_same(got, expected)
    assert was_planned(optimized)


def test_module_on_two_devices(optimized: OptimizedSymbol) -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    assert_same(fitted(optimized, context=contexts), fitted(network(), context=contexts))
    assert len(optimized.plans) == 2


def test_module_fit() -> None:
    # without BatchNorm, whose moving statistics fit() reads before MXNet's engine is done with them
    optimized = echo.optimize(network(batch_norm=False), **LOW_BOUND)

    def fit(symbol: Symbol) -> Record:
        generator = np.random.RandomState(0)
        data = mx.io.NDArrayIter(
            generator.normal(0, 1, (32, *SHAPES["data"][1:])).astype("f"), generator.randint(0, 10, 32), BATCH,
            label_name="label",
        )  # fmt: skip
        trained = mx.mod.Module(symbol, label_names=["label"])
        trained.logger = logging.getLogger("tests")
        mx.random.seed(1)
        np.random.seed(1)
        trained.fit(
            data, eval_data=data, num_epoch=2, initializer=mx.init.Xavier(), optimizer="adam",
            monitor=mx.mon.Monitor(2, pattern=".*output"),
        )  # fmt: skip
        args, aux = trained.get_params()
        return {name: array.asnumpy() for name, array in {**args, **aux}.items()}

    assert_same(fit(optimized), fit(network(batch_norm=False)))
    assert was_planned(optimized)


def test_module_for_inference_is_left_alone(optimized: OptimizedSymbol) -> None:
    found = mx.mod.Module(optimized, label_names=["label"])
    found.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])], for_training=False)
    assert optimized.plans == []


def test_module_with_gradients_of_inputs(optimized: OptimizedSymbol) -> None:
    def run(symbol: Symbol) -> Record:
        found = mx.mod.Module(symbol, label_names=["label"])
        found.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])], inputs_need_grad=True, grad_req="add")
        mx.random.seed(1)
        np.random.seed(1)
        found.init_params(mx.init.Xavier())
        for batch in batches(2):
            found.forward_backward(batch)
        mx.nd.waitall()
        return {"data": found.get_input_grads()[0].asnumpy()}

    assert_same(run(optimized), run(network()))


def test_module_takes_another_batch_size(optimized: OptimizedSymbol) -> None:
    def run(symbol: Symbol) -> Record:
        found = module(symbol)
        for size in (BATCH, BATCH // 2, BATCH):
            for batch in batches(2, size):
                found.forward_backward(batch)
                found.update()
        mx.nd.waitall()
        args, aux = found.get_params()
        return {name: array.asnumpy() for name, array in {**args, **aux}.items()}

    assert_same(run(optimized), run(network()))


def test_bucketing_module() -> None:
    def run(wrap: Any) -> Record:
        def generate(steps: int) -> tuple[Symbol, tuple[str, ...], tuple[str, ...]]:
            words = mx.sym.Embedding(mx.sym.var("data"), input_dim=20, output_dim=16, name="embedding")
            outputs, _ = mx.rnn.LSTMCell(16, prefix="lstm_").unroll(steps, inputs=words, merge_outputs=True)
            scores = mx.sym.FullyConnected(mx.sym.reshape(outputs, shape=(-1, 16)), num_hidden=20, name="scores")
            label = mx.sym.reshape(mx.sym.var("label"), shape=(-1,))
            return wrap(mx.sym.SoftmaxOutput(scores, label, name="softmax")), ("data",), ("label",)

        def descriptions(steps: int) -> tuple[list[mx.io.DataDesc], list[mx.io.DataDesc]]:
            return [mx.io.DataDesc("data", (4, steps))], [mx.io.DataDesc("label", (4, steps))]

        found = mx.mod.BucketingModule(generate, default_bucket_key=12)
        found.bind(*descriptions(12))
        mx.random.seed(1)
        np.random.seed(1)
        found.init_params(mx.init.Xavier())
        found.init_optimizer(optimizer_params={"learning_rate": 0.1})
        generator = np.random.RandomState(0)
        for steps in (12, 5, 8, 5, 12):
            data, label = (mx.nd.array(generator.randint(0, 20, (4, steps))) for _ in range(2))
            provided = descriptions(steps)
            batch = mx.io.DataBatch(
                [data], [label], bucket_key=steps, provide_data=provided[0], provide_label=provided[1]
            )
            found.forward_backward(batch)
            found.update()
        args, aux = found.get_params()
        return {name: array.asnumpy() for name, array in {**args, **aux}.items()}

    wrapped: list[OptimizedSymbol] = []

    def wrap(symbol: Symbol) -> OptimizedSymbol:
        wrapped.append(echo.optimize(symbol, **LOW_BOUND))
        return wrapped[-1]

    assert_same(run(wrap), run(lambda symbol: symbol))
    assert sum(len(symbol.plans) for symbol in wrapped) == 3


# The symbol itself -------------------------------------------------------------------------------------------------


def test_checkpoints_are_the_users(optimized: OptimizedSymbol, tmp_path: Path) -> None:
    for name, symbol in (("echo", optimized), ("plain", network())):
        found = module(symbol)
        for batch in batches(2):
            found.forward_backward(batch)
            found.update()
        mx.nd.waitall()
        (tmp_path / name).mkdir()
        found.save_checkpoint(str(tmp_path / name / "model"), 3, save_optimizer_states=True)
    assert was_planned(optimized)
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert files == ["model-0003.params", "model-0003.states", "model-symbol.json"]
    for file in files:
        if file != "model-0003.states":  # a pickle of float32 arrays and of the process's settings
            assert (tmp_path / "echo" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes(), file


def test_checkpoint_is_loaded_and_optimized_again(optimized: OptimizedSymbol, tmp_path: Path) -> None:
    found = module(optimized)
    found.save_checkpoint(str(tmp_path / "model"), 1)
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "model"), 1)
    assert symbol.tojson() == network().tojson()
    again = mx.mod.Module(echo.optimize(symbol, **LOW_BOUND), label_names=["label"])
    again.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])])
    again.set_params(args, aux)
    for batch in batches(1):
        for each in (found, again):
            each.forward(batch, is_train=False)
    np.testing.assert_array_equal(found.get_outputs()[0].asnumpy(), again.get_outputs()[0].asnumpy())
