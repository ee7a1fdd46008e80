"""Trainings whose peak of the process is measured: symbols by Module, Gluon blocks, models of other projects."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, Callable

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from benchmarks.gluon_models import AttentiveLSTM
from benchmarks.models import MODELS, Model, random_values
from benchmarks.paper import transformer
from benchmarks.speech_models import deepspeech

STEPS = 5
_FLAGS = {"dynamic": {}, "static": {"static_alloc": True}}


class WordModel(gluon.HybridBlock):
    """A language model: two LSTM layers of 200 units over 33,278 words, as MXNet's example word_language_model."""

    def __init__(self, words: int = 33278, hidden: int = 200) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding, self.dropout = nn.Embedding(words, hidden), nn.Dropout(0.2)
            self.layers = rnn.LSTM(hidden, 2, input_size=hidden, dropout=0.2)
            self.out = nn.Dense(words, flatten=False, in_units=hidden)

    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Any:
        """As every block."""
        output, _ = self.layers(self.dropout(self.embedding(words)), [hidden, cell])
        return self.out(self.dropout(output))


class _Layer(gluon.HybridBlock):
    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        with self.name_scope():
            self.qkv = nn.Dense(3 * units, flatten=False, in_units=units)
            self.projection = nn.Dense(units, flatten=False, in_units=units)
            self.first = nn.Dense(4 * units, flatten=False, in_units=units)
            self.second = nn.Dense(units, flatten=False, in_units=4 * units)
            self.norms = nn.LayerNorm(in_channels=units), nn.LayerNorm(in_channels=units)
            self.norm0, self.norm1 = self.norms
            self.dropout, self.gelu = nn.Dropout(0.1), nn.GELU()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        qkv = self.qkv(x)
        scores = F.softmax(F.contrib.interleaved_matmul_selfatt_qk(qkv, heads=self._heads))
        mixed = F.contrib.interleaved_matmul_selfatt_valatt(qkv, self.dropout(scores), heads=self._heads)
        x = self.norm0(x + self.dropout(self.projection(mixed)))
        return self.norm1(x + self.dropout(self.second(self.gelu(self.first(x)))))


class Encoder(gluon.HybridBlock):
    """Six layers as BERT base has them, over 8,000 words."""

    def __init__(self, words: int = 8000, units: int = 768) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding, self.layers = nn.Embedding(words, units), nn.HybridSequential()
            for _ in range(6):
                self.layers.add(_Layer(units, 12))
            self.out = nn.Dense(words, flatten=False, in_units=units)

    def hybrid_forward(self, F: Any, words: Any) -> Any:
        """As every block."""
        return self.out(self.layers(self.embedding(words)))


def _images(name: str, batch: int, size: int) -> tuple[Any, list[Any], Any]:
    net = getattr(mx.gluon.model_zoo.vision, name)()
    return net, [mx.nd.random.normal(shape=(batch, 3, size, size))], mx.nd.zeros((batch,))


def _words() -> tuple[Any, list[Any], Any]:
    steps, batch = 35, 32
    states = [mx.nd.zeros((2, batch, 200)) for _ in range(2)]
    return WordModel(), [mx.nd.zeros((steps, batch)), *states], mx.nd.zeros((steps, batch))


def _sentences() -> tuple[Any, list[Any], Any]:
    return Encoder(), [mx.nd.zeros((128, 8))], mx.nd.zeros((128, 8))


def _attention() -> tuple[Any, list[Any], Any]:
    memory = mx.nd.random.normal(shape=(64, 50, 512))
    return AttentiveLSTM(50, 512, 1000), [mx.nd.zeros((64, 50)), memory], mx.nd.zeros((64, 50))


def _train_block(make: Callable[[], tuple[Any, list[Any], Any]], mode: str, optimizer: str = "sgd") -> None:
    net, inputs, labels = make()
    net.initialize(mx.init.Xavier())
    net.hybridize(**_FLAGS[mode])
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    options = {"learning_rate": 0.01, **({"momentum": 0.9} if optimizer == "sgd" else {})}
    trainer = gluon.Trainer(net.collect_params(), optimizer, options)
    for _ in range(STEPS):
        with autograd.record():
            loss = loss_of(net(*inputs), labels)
        loss.backward()
        trainer.step(labels.shape[0])
        mx.nd.waitall()


def _train_symbol(make: Callable[[], Model], optimizer: str = "sgd") -> None:
    model = make()
    data = [name for name in model.shapes if "label" not in name]
    labels = [name for name in model.shapes if "label" in name]
    module = mx.mod.Module(model.symbol, data, labels or None)
    module.bind([(name, model.shapes[name]) for name in data], [(name, model.shapes[name]) for name in labels] or None)
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": 0.001})
    values = {name: value for name, value in random_values(model).items() if name in model.shapes}
    batch = mx.io.DataBatch(*([mx.nd.array(values[name]) for name in names] for names in (data, labels)))
    for _ in range(STEPS):
        module.forward(batch, is_train=True)
        module.backward()
        module.update()
        mx.nd.waitall()


def predicted_by_plan(name: str) -> dict[str, int] | None:
    """The peaks that `mxecho plan` predicts for a symbol that Module trains, in bytes; None for other trainings.

    What the optimizer keeps is added: the command has an option for it.
    """
    symbol, _, runner = name.partition(", Module")
    if symbol not in _SYMBOLS:
        return None
    import echo
    from echo.report.predicted_peaks import of_symbol

    model = _SYMBOLS[symbol]()
    found = of_symbol(echo.plan(model.symbol, optimizer_states=2 if runner else 0, **model.shapes))
    return found and {"stock": found.stock.total, "echo": found.echo.total}


def _train_executor(make: Callable[[], Model]) -> None:
    """A loop of one's own, for labels that are not batched as the data is."""
    model = make()
    requests = model.grad_req()
    executor = model.symbol.simple_bind(mx.cpu(), grad_req=requests, **model.shapes)
    for name, value in random_values(model).items():
        executor.arg_dict[name][:] = value
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=0.001, momentum=0.9))
    names = [name for name, request in requests.items() if request != "null"]
    for _ in range(STEPS):
        executor.forward(is_train=True)
        executor.backward()
        for number, name in enumerate(names):
            updater(number, executor.grad_dict[name], executor.arg_dict[name])
        mx.nd.waitall()


def _train_project(project: str, model: str) -> None:
    module: Any = importlib.import_module(f"projects.{project}")
    module.load()
    module.MODELS[model](STEPS)


_SMALLER = transformer.Setting(batch=8)
_BLOCKS: dict[str, Callable[[], tuple[Any, list[Any], Any]]] = {
    "ResNet-18 b64, 128 px": partial(_images, "resnet18_v1", 64, 128),
    "word LM 2x200": _words,
    "BERT, 6 layers, T 128, b8": _sentences,
    "LSTMCell 2x512 b64 + attention": _attention,
    "ResNet-50 v2 b8, 224 px": partial(_images, "resnet50_v2", 8, 224),
}
_SYMBOLS: dict[str, Callable[[], Model]] = {
    "nmt": MODELS["nmt"],
    "lm": MODELS["lm"],
    "DeepSpeech2, GRU": partial(deepspeech, "gru"),
    "DeepSpeech2, LSTM": partial(deepspeech, "lstm"),
}
PROJECTS = {
    "gluon_nlp": ("awd_lstm", "bert", "transformer", "text_cnn"),
    "gluon_cv": ("cifar_resnet20_v1", "resnet18_v1", "mobilenetv2_0.25", "densenet121", "fastscnn"),
    "sockeye_1": ("rnn_lstm", "transformer", "cnn"),
}
TRAININGS: dict[str, Callable[[], None]] = {
    **{f"{name}, Module": partial(_train_symbol, make) for name, make in _SYMBOLS.items()},
    "lm, Module, adam": partial(_train_symbol, MODELS["lm"], "adam"),
    "Transformer base, b8, executor": partial(_train_executor, partial(transformer.model, "transformer", _SMALLER)),
    **{f"{name}, {mode}": partial(_train_block, make, mode) for name, make in _BLOCKS.items() for mode in _FLAGS},
    "BERT, 6 layers, T 128, b8, static, adam": partial(_train_block, _sentences, "static", "adam"),
    **{f"{one}/{model}": partial(_train_project, one, model) for one, names in PROJECTS.items() for model in names},
}
