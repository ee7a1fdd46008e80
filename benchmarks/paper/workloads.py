"""The papers' workloads by name. Each builds a `Model` of the size that was published, or says here what was not.

Of ResNet, Inception, DenseNet and the U-Net no batch is published that fits them all: 32 images, 8 of the U-Net. BERT
has 128 steps and 32 sentences, and predicts every word, which takes more memory than the published 15 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mxnet.gluon.model_zoo import vision

from benchmarks.attention_models import bert
from benchmarks.models import Model, cnn, lm
from benchmarks.paper import nmt, sockeye, speech, transformer, unet

#: Word models of Zaremba et al. (2014) on Penn Treebank: units, steps, batch 20, 10,000 words.
_WORD_MODELS = {"lm_200": (200, 20), "lm_650": (650, 35), "lm_1500": (1500, 35)}


def _bert() -> Model:
    return replace(bert(128, 32, layers=12), name="bert_base")


WORKLOADS: dict[str, Callable[[], Model]] = {
    **{f"nmt_{name}": partial(nmt.model, f"nmt_{name}", setting) for name, setting in nmt.SETTINGS.items()},
    **{f"sockeye_{name}": partial(sockeye.model, f"sockeye_{name}", setting) for name, setting in nmt.SETTINGS.items()},
    "transformer": partial(transformer.model, "transformer", transformer.Setting()),
    "deepspeech2": partial(speech.model, "deepspeech2", speech.Setting()),
    "deepspeech2_rnn": partial(speech.model, "deepspeech2_rnn", speech.Setting("rnn")),
    "bert_base": _bert,
    "resnet50_v1": partial(cnn, "resnet50_v1", vision.resnet50_v1, 32, 224),
    "resnet50_v2": partial(cnn, "resnet50_v2", vision.resnet50_v2, 32, 224),
    "resnet152_v1": partial(cnn, "resnet152_v1", vision.resnet152_v1, 32, 224),
    "inception_v3": partial(cnn, "inception_v3", vision.inception_v3, 32, 299),
    "densenet121": partial(cnn, "densenet121", vision.densenet121, 32, 224),
    "unet": unet.model,
    **{name: partial(lm, name, steps, hidden, 10000, 20) for name, (hidden, steps) in _WORD_MODELS.items()},
}
