"""Words and sentences for the models of language: Django's messages in English and German."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from examples.parallel_text import Corpus, sentence_pairs


@functools.lru_cache(maxsize=None)
def corpus() -> Corpus:
    """Django's catalogues, whose every word has an id."""
    return Corpus.build(sentence_pairs(("django",)))


def sentences(batch: int, length: int, steps: int) -> list[Any]:
    """Batches of source, target and label, each (batch, length)."""
    return corpus().batches(length, batch)[:steps]


def stream(batch: int, length: int, steps: int) -> list[tuple[Any, Any]]:
    """Windows over `batch` parallel streams of English text, each (length, batch), with the next words."""
    english = corpus().english
    ids = np.array([word for one in corpus().examples for word in english.encode(one.source)], dtype=np.float32)
    columns = ids[: len(ids) // batch * batch].reshape(batch, -1).T
    starts = range(0, steps * length, length)
    return [(columns[at : at + length], columns[at + 1 : at + length + 1]) for at in starts]
