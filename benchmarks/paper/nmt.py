"""Translation with attention, as the papers train it: bidirectional LSTM, LSTM decoder, MLP attention, input feeding.

    python -m benchmarks.paper.nmt

prints what stock MXNet plans for each setting. The settings are those of the papers' Table "hyperparameters": "tbd"
(Zhu et al., TBD, IISWC 2018), "groundhog" (Bahdanau et al., 2015) and "best" (Hieber et al., Sockeye, 2017); IWSLT'15
English to Vietnamese has 17,191 and 7,709 words, and Sockeye trains sentences of up to 100 words.
"""

from __future__ import annotations

from dataclasses import dataclass

import mxnet as mx

from benchmarks.models import AttentionOver, Model, embedded_steps, planned_mb, word_loss

SOURCE_WORDS, TARGET_WORDS, STEPS = 17191, 7709, 100


@dataclass(frozen=True)
class Setting:
    """``layers`` of ``hidden`` units in encoder and decoder each; the first of the encoder reads both ways."""

    layers: int
    hidden: int
    embedded: int
    batch: int
    steps: int = STEPS


SETTINGS = {
    "tbd": Setting(2, 512, 512, 128),
    "groundhog": Setting(1, 1000, 620, 80),
    "best": Setting(4, 512, 512, 32),
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
    attend = AttentionOver(_encoded(setting), hidden)
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
        feed = mx.sym.Activation(joined, act_type="tanh", name=f"feed{step}_tanh")
        outputs.append(feed)
    return word_loss(outputs, TARGET_WORDS, ignore_padding=True)


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
    for name, setting in SETTINGS.items():
        print(f"{name:10} {planned_mb(model(name, setting)):6} MB planned by stock MXNet")


if __name__ == "__main__":
    main()
