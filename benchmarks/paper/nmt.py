"""Translation with attention, as the papers train it: bidirectional LSTM, LSTM decoder, MLP attention, input feeding.

    python -m benchmarks.paper.nmt

prints what stock MXNet plans for each setting. The settings are those of the papers' Table "hyperparameters": "tbd"
(Zhu et al., TBD, IISWC 2018), "groundhog" (Bahdanau et al., 2015) and "best" (Hieber et al., Sockeye, 2017); IWSLT'15
English to Vietnamese has 17,191 and 7,709 words, and Sockeye trains sentences of up to 100 words. Layers are normalized
where Sockeye's `--layer-normalization` does it: in the attention and in the decoder's output, before each tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mxnet as mx

from benchmarks.models import Model, embedded_steps, planned_mb, word_loss
from benchmarks.record import parser

SOURCE_WORDS, TARGET_WORDS, STEPS = 17191, 7709, 100


@dataclass(frozen=True)
class Setting:
    """``layers`` of ``hidden`` units in encoder and decoder each; the first of the encoder reads both ways."""

    layers: int
    hidden: int
    embedded: int
    batch: int
    attention: int = 512
    normed: bool = False
    steps: int = STEPS


SETTINGS = {
    "tbd": Setting(2, 512, 512, 128),
    "groundhog": Setting(1, 1000, 500, 80, normed=True),
    "best": Setting(4, 1024, 512, 32, normed=True),
}


def model(name: str, setting: Setting) -> Model:
    """The training symbol: inputs `source`, `target` and `softmax_label`, (batch, steps) token ids; 0 is padding."""
    with mx.name.NameManager():
        symbol = _symbol(setting)
    shapes = dict.fromkeys(("source", "target", "softmax_label"), (setting.batch, setting.steps))
    limits = {"source": SOURCE_WORDS, "target": TARGET_WORDS, "softmax_label": TARGET_WORDS}
    return Model(name, symbol, shapes, limits=limits)


def _symbol(setting: Setting) -> mx.sym.Symbol:
    hidden = setting.hidden
    attend, norm = _attention_over(_encoded(setting), setting), _norm("feed", setting)
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(setting.layers):
        stack.add(mx.rnn.LSTMCell(hidden, prefix=f"decoder{layer}_"))
    words = embedded_steps("target", setting.steps, setting.embedded, TARGET_WORDS)
    weight, bias = mx.sym.var("feed_weight"), mx.sym.var("feed_bias")
    states, feed, outputs = stack.begin_state(), mx.sym.zeros(shape=(0, hidden)), []
    for step, word in enumerate(words):
        output, states = stack(mx.sym.concat(word, feed, dim=1), states)
        both = mx.sym.concat(output, attend(output, step), dim=1, name=f"feed{step}_concat")
        joined = mx.sym.FullyConnected(both, weight=weight, bias=bias, num_hidden=hidden, name=f"feed{step}_fc")
        feed = mx.sym.Activation(norm(joined, step), act_type="tanh", name=f"feed{step}_tanh")
        outputs.append(feed)
    return word_loss(outputs, TARGET_WORDS, ignore_padding=True)


def _norm(layer: str, setting: Setting) -> Callable[[mx.sym.Symbol, int], mx.sym.Symbol]:
    """The normalization of a layer's output in each step, with weights that all steps share; nothing without norms."""
    if not setting.normed:
        return lambda x, step: x
    gamma, beta = (mx.sym.var(f"{layer}_norm_{part}") for part in ("gamma", "beta"))
    return lambda x, step: mx.sym.LayerNorm(x, gamma, beta, name=f"{layer}{step}_norm")


def _attention_over(encoded: mx.sym.Symbol, setting: Setting) -> Callable[[mx.sym.Symbol, int], mx.sym.Symbol]:
    """As `benchmarks.models.AttentionOver`, with its own number of units, and normalized where the setting says so."""
    units, norm = setting.attention, _norm("attention", setting)
    query_weight, score_weight = (mx.sym.var(f"attention_{part}_weight") for part in ("query", "score"))
    keys = mx.sym.FullyConnected(encoded, num_hidden=units, flatten=False, name="attention_keys")

    def attend(query: mx.sym.Symbol, step: int) -> mx.sym.Symbol:
        name = f"attention{step}"
        projected = mx.sym.FullyConnected(
            query, weight=query_weight, no_bias=True, num_hidden=units, name=f"{name}_query"
        )
        mixed = mx.sym.broadcast_add(keys, mx.sym.expand_dims(projected, axis=1), name=f"{name}_add")
        active = mx.sym.Activation(norm(mixed, step), act_type="tanh", name=f"{name}_tanh")
        scores = mx.sym.FullyConnected(
            active, weight=score_weight, no_bias=True, num_hidden=1, flatten=False, name=f"{name}_score"
        )
        weights = mx.sym.softmax(scores, axis=1, name=f"{name}_softmax")
        weighted = mx.sym.broadcast_mul(encoded, weights, name=f"{name}_mul")
        return mx.sym.sum(weighted, axis=1, name=f"{name}_context")

    return attend


def _encoded(setting: Setting) -> mx.sym.Symbol:
    words = embedded_steps("source", setting.steps, setting.embedded, SOURCE_WORDS)
    both_ways = mx.rnn.BidirectionalCell(
        *(mx.rnn.LSTMCell(setting.hidden // 2, prefix=f"encoder_{way}_") for way in ("left", "right")),
        output_prefix="encoder_",
    )
    outputs, _ = both_ways.unroll(setting.steps, inputs=words, merge_outputs=False)
    for layer in range(1, setting.layers):
        cell = mx.rnn.LSTMCell(setting.hidden, prefix=f"encoder{layer}_")
        outputs, _ = cell.unroll(setting.steps, inputs=outputs, merge_outputs=False)
    rows = [mx.sym.expand_dims(output, axis=1) for output in outputs]
    return mx.sym.concat(*rows, dim=1, name="encoded")


def main() -> None:
    """Prints what stock MXNet plans for each setting."""
    parser(__doc__).parse_args()
    for name, setting in SETTINGS.items():
        print(f"{name:10} {planned_mb(model(name, setting)):6} MB planned by stock MXNet")


if __name__ == "__main__":
    main()
