"""The seven models of the acceptance table, at the paper's sizes and at sizes that train in under a second.

    python -m benchmarks.models

prints what stock MXNet plans for each.

Every builder returns a `Model`: a training symbol plus the shapes of its inputs. Nothing here allocates
memory for arrays; `planned_mb` asks MXNet's own planner what a training step would need, with arguments
whose memory is never touched, so even the largest model can be planned on a laptop.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision
from mxnet.ndarray.ndarray import _new_alloc_handle

from benchmarks.record import parser

if TYPE_CHECKING:
    from numpy.typing import NDArray


MXNET_MB = 2**20 / 1e6  # the MB of 2^20 bytes that MXNet prints, in MB


@dataclass(frozen=True)
class Model:
    """A training symbol and the shapes of its inputs.

    `shapes` holds inputs only (token ids, images, labels): all other arguments are trained parameters.
    `limits` gives the exclusive upper bound of each input that holds integers; other inputs are real.
    `stock_mb` is what MXNet 1.9.1 plans for it without help, in MB as `planned_mb` counts them, or None
    if the figure is not written down.
    """

    name: str
    symbol: mx.sym.Symbol
    shapes: dict[str, tuple[int, ...]]
    stock_mb: int | None = None
    limits: dict[str, int] = field(default_factory=dict)

    def grad_req(self) -> dict[str, str]:
        """`"null"` for each input, `"write"` for each parameter: what `mx.mod.Module` asks for."""
        return {name: "null" if name in self.shapes else "write" for name in self.symbol.list_arguments()}


def planned_mb(model: Model) -> int:
    """MB that MXNet's planner reserves for one training step of `model` (arguments and gradients excluded).

    The arrays are bound with delayed allocation, so the answer costs no memory. Raises `mx.MXNetError`
    where a shape cannot be inferred, and `ValueError` where MXNet's printout has no total.
    """
    text = bind_without_memory(model).debug_str()
    total = re.search(r"Total (\d+) MB allocated", text)
    if total is None:
        raise ValueError(f"expected 'Total N MB allocated' in MXNet's printout, got {text[-200:]!r}")
    return int(total.group(1))


def bind_without_memory(model: Model) -> mx.executor.Executor:
    """A planned executor of `model` that owns no memory until it is run."""
    arg_shapes, _, aux_shapes = model.symbol.infer_shape(**model.shapes)
    names = model.symbol.list_arguments()
    args = {name: _delayed(shape) for name, shape in zip(names, arg_shapes)}
    trained = {name: _delayed(shape) for name, shape in zip(names, arg_shapes) if name not in model.shapes}
    aux = [_delayed(shape) for shape in aux_shapes]
    return model.symbol.bind(mx.cpu(), args, trained, model.grad_req(), aux)


def random_values(model: Model, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """A float32 array for each argument: uniform integers below the limit, or normal values of deviation 0.1.

    For checks and timings only; the same seed gives the same values.
    """
    generator = np.random.RandomState(seed)
    arg_shapes, _, _ = model.symbol.infer_shape(**model.shapes)
    values = {}
    for name, shape in zip(model.symbol.list_arguments(), arg_shapes):
        limit = model.limits.get(name)
        drawn = generator.normal(0, 0.1, shape) if limit is None else generator.randint(0, limit, shape)
        values[name] = drawn.astype(np.float32)
    return values


def _delayed(shape: tuple[int, ...]) -> mx.nd.NDArray:
    return mx.nd.NDArray(_new_alloc_handle(shape, mx.cpu(), True, "float32"))


# Translation: bi-LSTM encoder, LSTM decoder, MLP attention, input feeding ---------------------------------


def nmt_symbol(steps: int, hidden: int, vocabulary: int) -> mx.sym.Symbol:
    """Encoder-decoder with MLP attention, `steps` source and `steps` target positions.

    Inputs: `source`, `target` and `softmax_label`, each (batch, steps) token ids; id 0 is padding, which
    the loss ignores. Output: (batch * steps, vocabulary) probabilities, steps-major.
    """
    encoded = _encode(steps, hidden, vocabulary)
    attend = AttentionOver(encoded, hidden)
    cell = mx.rnn.LSTMCell(hidden, prefix="decoder_")
    words = embedded_steps("target", steps, hidden, vocabulary)
    feed_weight, feed_bias = mx.sym.var("feed_weight"), mx.sym.var("feed_bias")
    states = cell.begin_state()
    feed = mx.sym.zeros(shape=(0, hidden))
    outputs = []
    for step, word in enumerate(words):
        output, states = cell(mx.sym.concat(word, feed, dim=1), states)
        both = mx.sym.concat(output, attend(output, step), dim=1, name=f"feed{step}_concat")
        joined = mx.sym.FullyConnected(
            both, weight=feed_weight, bias=feed_bias, num_hidden=hidden, name=f"feed{step}_fc"
        )
        feed = mx.sym.Activation(joined, act_type="tanh", name=f"feed{step}_tanh")
        outputs.append(feed)
    return word_loss(outputs, vocabulary, ignore_padding=True)


def _encode(steps: int, hidden: int, vocabulary: int) -> mx.sym.Symbol:
    words = embedded_steps("source", steps, hidden, vocabulary)
    cell = mx.rnn.BidirectionalCell(
        mx.rnn.LSTMCell(hidden // 2, prefix="encoder_left_"),
        mx.rnn.LSTMCell(hidden // 2, prefix="encoder_right_"),
        output_prefix="encoder_",
    )
    outputs, _ = cell.unroll(steps, inputs=words, merge_outputs=False)
    rows = [mx.sym.expand_dims(output, axis=1) for output in outputs]
    return mx.sym.concat(*rows, dim=1, name="encoded")


def embedded_steps(name: str, steps: int, hidden: int, vocabulary: int) -> list[mx.sym.Symbol]:
    """The embedded words of input `name`, one (batch, hidden) symbol for each step."""
    embedded = mx.sym.Embedding(mx.sym.var(name), input_dim=vocabulary, output_dim=hidden, name=f"{name}_embedding")
    return list(mx.sym.split(embedded, num_outputs=steps, axis=1, squeeze_axis=True, name=f"{name}_steps"))


class AttentionOver:
    """Bahdanau's: a weight for each source position from a one-layer perceptron over (position, query)."""

    def __init__(self, encoded: mx.sym.Symbol, hidden: int) -> None:
        self._encoded = encoded
        self._hidden = hidden
        self._query_weight = mx.sym.var("attention_query_weight")
        self._score_weight = mx.sym.var("attention_score_weight")
        # The keys are the same in every decoder step: projected once.
        self._keys = mx.sym.FullyConnected(encoded, num_hidden=hidden, flatten=False, name="attention_keys")

    def __call__(self, query: mx.sym.Symbol, step: int) -> mx.sym.Symbol:
        """The (batch, hidden) context that `query`, (batch, hidden), attends to."""
        name = f"attention{step}"
        projected = mx.sym.FullyConnected(
            query, weight=self._query_weight, no_bias=True, num_hidden=self._hidden, name=f"{name}_query"
        )
        mixed = mx.sym.broadcast_add(self._keys, mx.sym.expand_dims(projected, axis=1), name=f"{name}_add")
        active = mx.sym.Activation(mixed, act_type="tanh", name=f"{name}_tanh")
        scores = mx.sym.FullyConnected(
            active, weight=self._score_weight, no_bias=True, num_hidden=1, flatten=False, name=f"{name}_score"
        )
        weights = mx.sym.softmax(scores, axis=1, name=f"{name}_softmax")
        weighted = mx.sym.broadcast_mul(self._encoded, weights, name=f"{name}_mul")
        return mx.sym.sum(weighted, axis=1, name=f"{name}_context")


def word_loss(outputs: list[mx.sym.Symbol], vocabulary: int, ignore_padding: bool) -> mx.sym.Symbol:
    """Softmax over the vocabulary of all steps at once; the label is brought to the steps' order."""
    joined = mx.sym.concat(*outputs, dim=0, name="outputs")
    logits = mx.sym.FullyConnected(joined, num_hidden=vocabulary, name="logits")
    label = mx.sym.reshape(mx.sym.transpose(mx.sym.var("softmax_label")), shape=(-1,))
    options: dict[str, Any] = (
        {"use_ignore": True, "ignore_label": 0, "normalization": "valid"} if ignore_padding else {}
    )
    return mx.sym.SoftmaxOutput(logits, label, name="softmax", **options)


def _nmt(name: str, steps: int, hidden: int, vocabulary: int, batch: int, stock_mb: int | None = None) -> Model:
    inputs = ("source", "target", "softmax_label")
    with mx.name.NameManager():
        symbol = nmt_symbol(steps, hidden, vocabulary)
    return Model(name, symbol, dict.fromkeys(inputs, (batch, steps)), stock_mb, dict.fromkeys(inputs, vocabulary))


# Word language model ---------------------------------------------------------------------------------------


def lm_symbol(steps: int, hidden: int, layers: int, vocabulary: int) -> mx.sym.Symbol:
    """Stacked LSTM over `steps` words.

    Inputs: `data` and `softmax_label`, each (batch, steps) token ids. Output: (batch * steps, vocabulary)
    probabilities, steps-major.
    """
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(layers):
        stack.add(mx.rnn.LSTMCell(hidden, prefix=f"lstm{layer}_"))
    words = embedded_steps("data", steps, hidden, vocabulary)
    outputs, _ = stack.unroll(steps, inputs=words, merge_outputs=False)
    return word_loss(outputs, vocabulary, ignore_padding=False)


def lm(name: str, steps: int, hidden: int, vocabulary: int, batch: int, stock_mb: int | None = None) -> Model:
    inputs = ("data", "softmax_label")
    with mx.name.NameManager():
        symbol = lm_symbol(steps, hidden, 2, vocabulary)
    return Model(name, symbol, dict.fromkeys(inputs, (batch, steps)), stock_mb, dict.fromkeys(inputs, vocabulary))


# Convolutional networks of the Gluon model zoo -------------------------------------------------------------


def cnn(
    name: str, build: Callable[..., mx.gluon.HybridBlock], batch: int, side: int, stock_mb: int | None = None
) -> Model:
    """A Gluon network of 1000 classes traced into a symbol, on (batch, 3, side, side) images."""
    with mx.name.NameManager():
        network = build(prefix=f"{name}_")
        scores = network(mx.sym.var("data"))
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("softmax_label"), name="softmax")
    shapes = {"data": (batch, 3, side, side), "softmax_label": (batch,)}
    return Model(name, symbol, shapes, stock_mb, {"softmax_label": 1000})


def _small_resnet(
    resnet: Callable[..., mx.gluon.HybridBlock], bottleneck: type[mx.gluon.HybridBlock], prefix: str
) -> mx.gluon.HybridBlock:
    """Four stages as in ResNet-50, each with a block that changes the shape and at most one that does not."""
    return resnet(bottleneck, [2, 2, 1, 1], [16, 32, 64, 128, 256], prefix=prefix)


def _small_densenet(prefix: str) -> mx.gluon.HybridBlock:
    # Stock oneDNN fails on a growth of 8 channels ("could not construct a sub-memory"); 16 is fine.
    return _pool_whole_map(vision.DenseNet(32, 16, [2, 3, 2, 2], prefix=prefix), prefix)


def _small_inception(prefix: str) -> mx.gluon.HybridBlock:
    return _pool_whole_map(vision.inception_v3(prefix=prefix), prefix)


def _pool_whole_map(network: mx.gluon.HybridBlock, prefix: str) -> mx.gluon.HybridBlock:
    """`network` for images of any size: the zoo's last pooling has a fixed window that fits only one size."""
    layers = mx.gluon.nn.HybridSequential(prefix=prefix)
    for layer in network.features:
        layers.add(mx.gluon.nn.GlobalAvgPool2D() if isinstance(layer, mx.gluon.nn.AvgPool2D) else layer)
    layers.add(network.output)
    return layers


# Registries ------------------------------------------------------------------------------------------------

#: The models of the acceptance table, with the MB that stock MXNet 1.9.1 plans for each.
MODELS: dict[str, Callable[[], Model]] = {
    "nmt": partial(_nmt, "nmt", 30, 256, 5000, 64, 334),
    "nmt_large": partial(_nmt, "nmt_large", 50, 512, 7700, 128, 2254),
    "lm": partial(lm, "lm", 35, 650, 10000, 32, 216),
    "resnet50_v1": partial(cnn, "resnet50_v1", vision.resnet50_v1, 32, 224, 2772),
    "resnet50_v2": partial(cnn, "resnet50_v2", vision.resnet50_v2, 32, 224, 2622),
    "densenet121": partial(cnn, "densenet121", vision.densenet121, 32, 224, 4165),
    "inception_v3": partial(cnn, "inception_v3", vision.inception_v3, 32, 299, 3176),
}

#: The same architectures with fewer units, steps, blocks and pixels: a training step takes under a second.
SMALL: dict[str, Callable[[], Model]] = {
    "nmt": partial(_nmt, "nmt", 6, 64, 200, 32),
    "nmt_large": partial(_nmt, "nmt_large", 9, 96, 300, 32),
    "lm": partial(lm, "lm", 10, 96, 400, 32),
    "resnet50_v1": partial(cnn, "resnet50_v1", partial(_small_resnet, vision.ResNetV1, vision.BottleneckV1), 4, 96),
    "resnet50_v2": partial(cnn, "resnet50_v2", partial(_small_resnet, vision.ResNetV2, vision.BottleneckV2), 4, 96),
    "densenet121": partial(cnn, "densenet121", _small_densenet, 4, 96),
    "inception_v3": partial(cnn, "inception_v3", _small_inception, 2, 96),
}


def main() -> None:
    """Print what stock MXNet plans for each model, next to the figure written down above."""
    parser(__doc__).parse_args()
    for name, build in MODELS.items():
        model = build()
        print(f"{name:14} {planned_mb(model):5} MB planned, {model.stock_mb} expected")


if __name__ == "__main__":
    main()
