"""GluonNLP 0.10.0: language models, BERT and its kin, translation, ELMo, text classification."""

from __future__ import annotations

import functools
from typing import Any, Callable

import numpy as np

from projects.text import corpus, sentences, stream
from projects.witness import Arrays, parameters

PACKAGE = "gluonnlp"
BATCH, LENGTH = 8, 24


def load() -> None:
    """Imports the project."""
    import gluonnlp  # noqa: F401


def _language_model(net: Any, loss_of: Callable[..., Any], steps: int) -> Arrays:
    """As GluonNLP's word_language_model.py: states go on from window to window, cut off from their past."""
    import mxnet as mx
    from gluonnlp.utils import clip_grad_global_norm

    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0, "momentum": 0, "wd": 1.2e-6})
    hidden = net.begin_state(batch_size=BATCH, func=mx.nd.zeros)
    for data, target in stream(BATCH, LENGTH, steps):
        hidden = [[one.detach() for one in state] if isinstance(state, list) else state.detach() for state in hidden]
        with mx.autograd.record():
            output, hidden, raw, dropped = net(mx.nd.array(data), hidden)
            loss = loss_of(output, mx.nd.array(target), raw, dropped)
        loss.backward()
        clip_grad_global_norm(net.collect_params().values(), 0.25 * LENGTH * BATCH)
        trainer.step(1)
    return parameters([net])


def _awd(mode: str, steps: int) -> Arrays:
    import gluonnlp as nlp
    import mxnet as mx

    net = nlp.model.train.AWDRNN(mode, len(corpus().english), 64, 96, 2, True, 0.4, 0.5, 0.2, 0.65, 0.1)
    entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    activation = nlp.loss.ActivationRegularizationLoss(2.0)
    temporal = nlp.loss.TemporalActivationRegularizationLoss(1.0)

    def loss(output: Any, target: Any, raw: Any, dropped: Any) -> Any:
        found = entropy(output.reshape((-3, -1)), target.reshape((-1,)))
        return found + activation(*dropped[-1:]) + temporal(*raw[-1:])

    return _language_model(net, loss, steps)


def _standard(mode: str, steps: int) -> Arrays:
    import gluonnlp as nlp
    import mxnet as mx

    net = nlp.model.train.StandardRNN(mode, len(corpus().english), 64, 64, 2, 0.5, mode == "lstm")
    entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def loss(output: Any, target: Any, *_: Any) -> Any:
        return entropy(output.reshape((-3, -1)), target.reshape((-1,)))

    return _language_model(net, loss, steps)


def _tokens() -> tuple[Any, Any, Any, Any]:
    """Ids, segments, lengths and masked positions, as BERT reads them."""
    import mxnet as mx

    batch = sentences(BATCH, LENGTH, 1)[0]
    ids = np.concatenate([batch.source, batch.target], axis=1)
    segments = np.repeat(np.array([[0.0, 1.0]], np.float32), LENGTH, axis=1).repeat(BATCH, axis=0)
    lengths = LENGTH + (batch.target > 0).sum(axis=1)
    masked = np.random.RandomState(1).randint(0, LENGTH, (BATCH, 6))
    return tuple(mx.nd.array(one) for one in (ids, segments, lengths, masked))  # type: ignore[return-value]


def _bert_encoder(**options: Any) -> Any:
    from gluonnlp.model import BERTEncoder

    return BERTEncoder(num_layers=2, units=64, hidden_size=256, max_length=2 * LENGTH, num_heads=4, dropout=0.1,
                       **options)  # fmt: skip


def _words() -> int:
    return max(len(corpus().english), len(corpus().german))


def _fit(net: Any, loss_of: Callable[[], Any], steps: int, optimizer: str = "adam", rate: float = 1e-3) -> Arrays:
    import mxnet as mx

    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": rate})
    for _ in range(steps):
        with mx.autograd.record():
            loss = loss_of()
        loss.backward()
        trainer.step(1)
    return parameters([net])


def _pretraining(steps: int, model: str = "BERTModel", **options: Any) -> Arrays:
    """Masked words, and the next sentence where the model has a classifier for it."""
    import gluonnlp as nlp
    import mxnet as mx

    ids, segments, lengths, masked = _tokens()
    bert = model == "BERTModel"
    known = {"vocab_size": _words(), "units": 64, "embed_size": 64}
    if bert:
        known["token_type_vocab_size"] = 2
    net = getattr(nlp.model, model)(_bert_encoder(**options), use_decoder=True, **known)
    net.initialize(mx.init.Normal(0.02))
    net.hybridize(static_alloc=True, static_shape=True)
    entropy = mx.gluon.loss.SoftmaxCELoss()
    entropy.hybridize(static_alloc=True, static_shape=True)
    words = mx.nd.array(np.take_along_axis(ids.asnumpy(), masked.asnumpy().astype(int), axis=1))
    following = masked[:, 0] % 2

    def loss() -> Any:
        outputs = net(ids, segments, lengths, masked) if bert else net(ids, lengths, masked)
        total = entropy(outputs[-1].reshape((-3, 0)), words.reshape((-1,))).mean()
        return total + entropy(outputs[-2], following).mean() if bert else total

    return _fit(net, loss, steps)


def _bert_classifier(steps: int) -> Arrays:
    import gluonnlp as nlp
    import mxnet as mx

    ids, segments, lengths, masked = _tokens()
    bert = nlp.model.BERTModel(_bert_encoder(), vocab_size=_words(), token_type_vocab_size=2, units=64, embed_size=64,
                               use_decoder=False, use_classifier=False)  # fmt: skip
    net = nlp.model.BERTClassifier(bert, num_classes=3, dropout=0.1)
    net.initialize(mx.init.Normal(0.02))
    net.hybridize(static_alloc=True)
    entropy = mx.gluon.loss.SoftmaxCELoss()
    entropy.hybridize(static_alloc=True)
    return _fit(net, lambda: entropy(net(ids, segments, lengths), masked[:, 0] % 3).mean(), steps)


def _transformer(steps: int, **options: Any) -> Arrays:
    """As GluonNLP's train_transformer.py, with its smoothed labels and masked loss."""
    import gluonnlp as nlp
    import mxnet as mx

    encoder, decoder, one_step = nlp.model.transformer.get_transformer_encoder_decoder(
        num_layers=2, num_heads=4, units=64, hidden_size=128, dropout=0.1, max_src_length=64, max_tgt_length=64,
        **options)  # fmt: skip
    english, german = (range(len(side)) for side in (corpus().english, corpus().german))
    net = nlp.model.translation.NMTModel(src_vocab=english, tgt_vocab=german, encoder=encoder, decoder=decoder,
                             one_step_ahead_decoder=one_step, embed_size=64, tie_weights=True,
                             embed_initializer=None, prefix="transformer_")  # fmt: skip
    net.initialize(mx.init.Xavier(magnitude=3))
    net.hybridize(static_alloc=True)
    smooth = nlp.loss.LabelSmoothing(epsilon=0.1, units=len(german))
    entropy = nlp.loss.MaskedSoftmaxCELoss(sparse_label=False)
    smooth.hybridize()
    entropy.hybridize()
    batches = iter(sentences(BATCH, LENGTH, steps))

    def loss() -> Any:
        batch = next(batches)
        source, target, label = (mx.nd.array(one) for one in batch)
        lengths = [mx.nd.array((one > 0).sum(axis=1)) for one in (batch.source, batch.target)]
        output, _ = net(source, target, *lengths)
        return entropy(output, smooth(label), lengths[1]).mean()

    return _fit(net, loss, steps)


def _elmo(steps: int) -> Arrays:
    import gluonnlp as nlp
    import mxnet as mx

    filters = [[1, 8], [2, 8], [3, 16], [4, 16]]
    net = nlp.model.ELMoBiLM("lstmpc", 32, filters, 8, 262, 1, "relu", 12, 32, 64, 32, 2, 3, 3)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    letters = mx.nd.array(np.random.RandomState(1).randint(0, 262, (BATCH, LENGTH, 12)))
    states = net.begin_state(mx.nd.zeros, batch_size=BATCH)
    return _fit(net, lambda: sum(one.square().mean() for one in net(letters, states)[0]), steps)


def _text_cnn(steps: int) -> Arrays:
    """As GluonNLP's sentiment_analysis: embedding, convolutions of several widths, a classifier."""
    import gluonnlp as nlp
    import mxnet as mx
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(nn.Embedding(len(corpus().english), 48))
    net.add(nn.HybridLambda(lambda F, x: x.transpose((1, 0, 2))))
    net.add(nlp.model.ConvolutionalEncoder(48, (16, 16, 16), (3, 4, 5), "relu", 1))
    net.add(nn.Dropout(0.5), nn.Dense(2))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    entropy = mx.gluon.loss.SoftmaxCELoss()
    batches = iter(sentences(BATCH, LENGTH, steps))

    def loss() -> Any:
        source = mx.nd.array(next(batches).source)
        return entropy(net(source), source[:, 0] % 2).mean()

    return _fit(net, loss, steps)


def _big_rnn(steps: int) -> Arrays:
    """LSTMP with importance sampling, gradients of embeddings sparse: as large_word_language_model.py."""
    import gluonnlp as nlp
    import mxnet as mx

    words = len(corpus().english)
    net = nlp.model.train.BigRNN(words, 48, 96, 1, 48, 64, embed_dropout=0.1, encode_dropout=0.1, sparse_weight=False,
                                 sparse_grad=True)  # fmt: skip
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    random = np.random.RandomState(1)
    batches = iter(stream(BATCH, LENGTH, steps))
    states = net.begin_state(batch_size=BATCH, func=mx.nd.zeros)

    def loss() -> Any:
        data, target = next(batches)
        sampled = (mx.nd.array(random.choice(words, 64, replace=False)), mx.nd.ones(64), mx.nd.ones(target.shape))
        output, _, label = net(mx.nd.array(data), mx.nd.array(target), states, sampled)
        return entropy(output, label).mean()

    return _fit(net, loss, steps, "adagrad", 0.1)


MODELS: dict[str, Callable[[int], Arrays]] = {
    "awd_lstm": functools.partial(_awd, "lstm"),
    "awd_gru": functools.partial(_awd, "gru"),
    "standard_lstm": functools.partial(_standard, "lstm"),
    "standard_gru": functools.partial(_standard, "gru"),
    "big_rnn": _big_rnn,
    "bert": _pretraining,
    "bert_classifier": _bert_classifier,
    "roberta": functools.partial(_pretraining, model="RoBERTaModel", activation="gelu", layer_norm_eps=1e-5),
    "transformer": _transformer,
    "transformer_without_residual": functools.partial(_transformer, use_residual=False),
    "elmo": _elmo,
    "text_cnn": _text_cnn,
}
