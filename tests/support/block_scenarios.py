"""Ways to train a hybridized Gluon block, each as a function of a run that keeps what was computed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import echo

BATCH, FEATURES, CLASSES, STEPS = 8, 12, 5, 3
FLAGS: dict[str, dict[str, bool]] = {
    "dynamic": {},
    "static alloc": {"static_alloc": True},
    "static": {"static_alloc": True, "static_shape": True},
}
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


@dataclass
class Run:
    """One run of a program: its results, and the blocks of which something must have been recomputed."""

    folder: Path
    flags: dict[str, bool]
    seen: dict[str, Any] = field(default_factory=dict)
    blocks: list[Any] = field(default_factory=list)

    def keep(self, name: str, *arrays: Any) -> None:
        mx.nd.waitall()
        self.seen.update({f"{len(self.seen)} {name} {i}": array.asnumpy() for i, array in enumerate(arrays)})

    def keep_params(self, net: gluon.Block, gradients: bool = True) -> None:
        for name, param in sorted(net.collect_params().items()):
            self.keep(name, *param.list_data())
            if gradients and param.grad_req != "null":
                self.keep(f"gradient of {name}", *param.list_grad())

    def hybrid(self, net: gluon.HybridBlock) -> gluon.HybridBlock:
        """The block, initialized and hybridized."""
        net.initialize(mx.init.Xavier(), force_reinit=True)
        net.hybridize(**self.flags)
        self.blocks.append(net)
        return net


def net(prefix: str = "net_", norm: bool = True, dropout: float = 0.3) -> nn.HybridSequential:
    block = nn.HybridSequential(prefix=prefix)
    with block.name_scope():
        for _ in range(3):
            block.add(nn.Dense(24), nn.Activation("tanh"))
            if norm:
                block.add(nn.BatchNorm())
            block.add(nn.Activation("sigmoid"))
            if dropout:
                block.add(nn.Dropout(dropout))
        block.add(nn.Dense(CLASSES))
    return block


def batch(step: int, size: int = BATCH, shape: tuple[int, ...] = (FEATURES,), **kind: Any) -> tuple[Any, Any]:
    generator = np.random.RandomState(step)
    drawn = generator.normal(0, 1, (size, *shape)), generator.randint(0, CLASSES, size)
    array = mx.np.array if mx.util.is_np_array() else mx.nd.array
    return array(drawn[0], dtype=kind.get("dtype", "float32")), array(drawn[1], dtype="float32")


def train(run: Run, block: Any, steps: int = STEPS, size: int = BATCH, trainer: Any = None, **given: Any) -> None:
    trainer = trainer or gluon.Trainer(block.collect_params(), "adam")
    for step in range(steps):
        data, label = batch(step, size, **given)
        with autograd.record():
            output = block(data)
            loss = LOSS(output, label)
        loss.backward()
        trainer.step(size)
        run.keep("output", output)
    run.keep_params(block)


def training(run: Run) -> None:
    block = run.hybrid(net())
    train(run, block)
    run.keep("prediction", block(batch(9)[0]))
    block.export(str(run.folder / "model"), 3)
    block.save_parameters(str(run.folder / "net.params"))


def np_training(run: Run) -> None:
    mx.npx.set_np()
    try:
        block = run.hybrid(net())
        train(run, block)
        run.keep("prediction", block(batch(9)[0]))
        block.export(str(run.folder / "model"), 3)
    finally:
        mx.npx.reset_np()


def several_batch_sizes(run: Run) -> None:
    block = run.hybrid(net())
    trainer = gluon.Trainer(block.collect_params(), "sgd", {"momentum": 0.9})
    for size in (8, 3, 20, 8, 3):
        train(run, block, 2, size, trainer)


def exported_and_imported(run: Run) -> None:
    block = run.hybrid(net())
    train(run, block)
    block.export(str(run.folder / "model"))
    files = str(run.folder / "model-symbol.json"), ["data"], str(run.folder / "model-0000.params")
    with warnings.catch_warnings():  # that types are not in the file
        warnings.simplefilter("ignore", UserWarning)
        loaded = gluon.SymbolBlock.imports(*files)
    loaded.hybridize(**run.flags)
    run.blocks.append(loaded)
    train(run, loaded)
    loaded.export(str(run.folder / "again"))


class Outer(gluon.HybridBlock):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        with self.name_scope():
            self.first, self.second = net("first_"), net("second_", norm=False)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        return self.second(self.first(data)) * F.softmax(self.first(data))


def nested(run: Run) -> None:
    block = run.hybrid(Outer(prefix="outer_"))
    train(run, block)
    block.export(str(run.folder / "model"))


class Plain(gluon.Block):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        with self.name_scope():
            self.first, self.second = net("first_"), net("second_", dropout=0)

    def forward(self, data: Any) -> Any:
        return self.second(self.first(data)) * 2


def hybrid_parts_of_a_plain_block(run: Run) -> None:
    block = Plain(prefix="plain_")
    block.initialize(mx.init.Xavier())
    block.hybridize(**run.flags)
    run.blocks += [block.first, block.second]
    train(run, block)
    block.save_parameters(str(run.folder / "net.params"))


def several_forwards(run: Run) -> None:
    block = run.hybrid(net())
    with autograd.record():
        losses = [LOSS(block(data), label) for data, label in (batch(step) for step in range(3))]
        total = losses[0] + losses[1] * 2 + losses[2]
    total.backward()
    run.keep("loss", total)
    run.keep_params(block)


def backward_twice(run: Run) -> None:
    block = run.hybrid(net())
    data, label = batch(0)
    data.attach_grad()
    with autograd.record():
        loss = LOSS(block(data), label)
    for again in (True, False):
        loss.backward(retain_graph=again)
        run.keep("gradient", data.grad)
        run.keep_params(block)


def gradients_by_grad(run: Run) -> None:
    block = run.hybrid(net())
    data, label = batch(0)
    data.attach_grad()
    with autograd.record():
        loss = LOSS(block(data), label)
    weights = [param.data() for param in block.collect_params().values() if param.grad_req != "null"]
    run.keep("gradient", *autograd.grad(loss, [data, *weights]))


def frozen_and_added(run: Run) -> None:
    block = run.hybrid(net())
    block[0].collect_params().setattr("grad_req", "null")
    block[4].collect_params().setattr("grad_req", "add")
    trainer = gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1})
    train(run, block, trainer=trainer)


def modes(run: Run) -> None:
    """Prediction between the steps, and gradients of a prediction."""
    block = run.hybrid(net())
    data, label = batch(0)
    data.attach_grad()
    train(run, block, 1)
    run.keep("prediction", block(data))
    for backward in (False, True):
        with autograd.record(train_mode=False):
            output = block(data)
            loss = LOSS(output, label)
        loss.backward(train_mode=backward)
        run.keep("gradient", output, data.grad)
    with autograd.predict_mode():
        run.keep("prediction", block(data))
    with autograd.train_mode():
        run.keep("noisy prediction", block(data))
    train(run, block, 1)


def shared_parameters(run: Run) -> None:
    one = run.hybrid(net("one_"))
    other = net("two_")
    train(run, one, 1)
    other.collect_params()
    other = nn.HybridSequential(prefix="two_", params=one.params)
    for layer in one:
        other.add(layer)
    other.hybridize(**run.flags)
    run.blocks.append(other)
    with autograd.record():
        loss = LOSS(one(batch(1)[0]), batch(1)[1]) + LOSS(other(batch(2)[0]), batch(2)[1])
    loss.backward()
    run.keep_params(one)


def two_contexts(run: Run) -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    block = net()
    block.initialize(mx.init.Xavier(), ctx=contexts)
    block.hybridize(**run.flags)
    run.blocks.append(block)
    for update in (False, True):
        optimizer = {"learning_rate": 0.05, "momentum": 0.9}
        trainer = gluon.Trainer(block.collect_params(), "sgd", optimizer, update_on_kvstore=update)
        for step in range(2):
            parts = zip(*(gluon.utils.split_and_load(array, contexts) for array in batch(step)))
            with autograd.record():
                losses = [LOSS(block(data), label) for data, label in parts]
            autograd.backward(losses)
            mx.nd.waitall()  # or moving statistics, of which the engine does not know, meet the kvstore's first copy
            trainer.step(BATCH)
            run.keep("loss", *losses)
        trainer.save_states(str(run.folder / f"trainer{update}.states"))
    run.keep_params(block)


class Unrolled(gluon.HybridBlock):
    def __init__(self, *cells: Any, **given: Any) -> None:
        super().__init__(**given)
        with self.name_scope():
            self.cell = rnn.HybridSequentialRNNCell()
            for cell in cells:
                self.cell.add(cell)
            self.out = nn.Dense(CLASSES)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        outputs, _ = self.cell.unroll(6, data, layout="NTC", merge_outputs=True)
        return self.out(outputs)


def recurrent_cells(run: Run) -> None:
    cells = rnn.LSTMCell(10, prefix="lstm_"), rnn.DropoutCell(0.2), rnn.ZoneoutCell(rnn.GRUCell(10, prefix="gru_"), 0.2)
    train(run, run.hybrid(Unrolled(*cells, prefix="unrolled_")), shape=(6, 7))


class Layers(gluon.HybridBlock):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        with self.name_scope():
            self.lstm, self.out = rnn.LSTM(10, 2, layout="NTC", dropout=0.2), nn.Dense(CLASSES)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        return self.out(F.tanh(F.sigmoid(self.lstm(F.tanh(data * 2)))))


def recurrent_layer(run: Run) -> None:
    train(run, run.hybrid(Layers(prefix="layers_")), shape=(6, 7))


class Attention(gluon.HybridBlock):
    """An attention cell as in GluonNLP: projected, scaled, masked softmax with dropout, and layer normalization."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        with self.name_scope():
            dense = {"use_bias": False, "flatten": False}
            self.query, self.key, self.value = nn.Dense(16, **dense), nn.Dense(16, **dense), nn.Dense(16, **dense)
            self.dropout, self.norm, self.out = nn.Dropout(0.1), nn.LayerNorm(), nn.Dense(CLASSES)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        query = F.contrib.div_sqrt_dim(F.L2Normalization(self.query(data), mode="spatial"))
        scores = F.batch_dot(query, self.key(data), transpose_b=True)
        mask = F.broadcast_greater(scores, F.mean(scores, axis=-1, keepdims=True) - 1)
        weights = F.softmax(F.where(mask, scores, F.ones_like(scores) * -1e18), axis=-1) * mask
        context = F.batch_dot(self.dropout(weights), self.value(data))
        return self.out(F.LeakyReLU(self.norm(context) + F.tanh(context), act_type="gelu"))


def attention(run: Run) -> None:
    train(run, run.hybrid(Attention(prefix="attention_")), shape=(6, 7))


def float64(run: Run) -> None:
    block = net()
    block.cast("float64")
    train(run, run.hybrid(block), dtype="float64")


class Half(gluon.HybridBlock):
    """MXNet has no matrix product of this type on the CPU."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.scale = self.params.get("scale", shape=(1, FEATURES))

    def hybrid_forward(self, F: Any, data: Any, scale: Any) -> Any:
        hidden = F.tanh(F.broadcast_mul(data, scale))
        for _ in range(3):
            hidden = F.exp(F.sigmoid(hidden)) * hidden + F.softmax(hidden)
        return hidden


def float16(run: Run) -> None:
    block = Half(prefix="half_")
    block.cast("float16")
    block = run.hybrid(block)
    train(run, block, trainer=gluon.Trainer(block.collect_params(), "sgd", {"multi_precision": True}), dtype="float16")


def begun_again(run: Run) -> None:
    """hybridize, initialize and load_parameters once plans are there."""
    block = run.hybrid(net())
    train(run, block, 1)
    block.save_parameters(str(run.folder / "first.params"))
    block.hybridize(**run.flags)
    train(run, block, 1)
    block.initialize(mx.init.Normal(0.1), force_reinit=True)
    train(run, block, 1)
    block.load_parameters(str(run.folder / "first.params"))
    train(run, block, 1)
    block.hybridize(False)
    train(run, block, 1)
    block.hybridize(**run.flags)
    train(run, block, 1)


def data_loader(run: Run) -> None:
    """Workers are forked while echo is on."""
    block = run.hybrid(net())
    data = gluon.data.ArrayDataset(*(array.asnumpy() for array in batch(0, 24)))
    trainer = gluon.Trainer(block.collect_params(), "sgd")
    for values, label in gluon.data.DataLoader(data, BATCH, num_workers=2):
        with autograd.record():
            loss = LOSS(block(values.as_in_context(mx.cpu())), label.as_in_context(mx.cpu()))
        loss.backward()
        trainer.step(BATCH)
        run.keep("loss", loss)
    run.keep_params(block)


def estimator(run: Run) -> None:
    from mxnet.gluon.contrib.estimator import Estimator

    block = run.hybrid(net())
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(*batch(0, 24)), BATCH)
    fitted = Estimator(block, LOSS, trainer=gluon.Trainer(block.collect_params(), "adam"), context=mx.cpu())
    fitted.logger.handlers.clear()
    fitted.fit(data, epochs=2)
    run.keep_params(block)


def plans_of(block: gluon.HybridBlock) -> Iterator[echo.Plan]:
    yield from block._cached_op.plans.values()
