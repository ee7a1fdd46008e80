"""How long does a language model train to a given perplexity, at the batch that each way affords in the same memory?

    python -m benchmarks.paper.perplexity [--fresh]

The papers' authors spend the memory that recomputation frees on a larger batch. Here stock MXNet trains the word model
of two layers of 200 units at its published batch of 20; echo gets all the bytes that stock holds there, and the largest
batch that fits. All train the same text, on one thread, and take turns of some seconds, until each has the perplexity
on text that was held out; the rate of Adam grows with the root of the batch. Text is the reference of the language
that comes with Python. Writes results/paper_perplexity.json.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when mxnet is imported

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

import echo
from benchmarks.models import Model, lm
from benchmarks.paper.largest import largest
from benchmarks.paper.planning import VARIANTS, Found, Results, measure_from_command_line, way
from examples.parallel_text import Vocabulary

NAME = "paper_perplexity"
WAYS = ("stock", "echo", "default")
HIDDEN, STEPS, BATCH, RATE = 200, 20, 20, 4e-3
PERPLEXITY = 220.0
HELD_OUT = 0.1  # of the text
_TURN = 3.0  # seconds
_MOST = 900.0  # seconds of one way, after which it has failed
Words = NDArray[np.float32]


@lru_cache(maxsize=None)
def text() -> tuple[Words, Words, int]:
    """Ids of the words to train and of those held out, and how many different ones there are; rare ones are unknown."""
    from pydoc_data.topics import topics

    words = re.findall(r"\w+|[.,;:()]", " ".join(topics[name] for name in sorted(topics)).lower())
    vocabulary = Vocabulary.build([words], 2)
    ids = np.array(vocabulary.encode(words), dtype=np.float32)
    end = int(len(ids) * (1 - HELD_OUT))
    return ids[:end], ids[end:], len(vocabulary)


def model(batch: int) -> Model:
    """The word model at a batch."""
    return lm(f"lm, batch {batch}", STEPS, HIDDEN, text()[2], batch)


def windows(ids: Words, batch: int) -> Iterator[tuple[Words, Words]]:
    """Once through the text in ``batch`` streams: (batch, steps) words and the words after them."""
    rows = ids[: (len(ids) - 1) // batch * batch].reshape(batch, -1)
    after = ids[1 : rows.size + 1].reshape(batch, -1)
    for at in range(0, rows.shape[1] - STEPS + 1, STEPS):
        yield rows[:, at : at + STEPS], after[:, at : at + STEPS]


@dataclass
class Training:
    """One way at its batch: its executor, and how far it is. ``seconds`` are of updates alone."""

    name: str
    batch: int

    def __post_init__(self) -> None:
        built = model(self.batch)
        symbol = built.symbol if self.name == "stock" else echo.optimize(built.symbol, **VARIANTS[self.name])
        self.executor = symbol.simple_bind(mx.cpu(), grad_req=built.grad_req(), **built.shapes)
        self.trained = [name for name in built.symbol.list_arguments() if name not in built.shapes]
        draw = np.random.RandomState(0)
        for name in self.trained:
            array = self.executor.arg_dict[name]
            array[:] = draw.uniform(-0.1, 0.1, array.shape)
        rate = RATE * (self.batch / BATCH) ** 0.5
        self.update = mx.optimizer.get_updater(
            mx.optimizer.Adam(learning_rate=rate, rescale_grad=1 / (self.batch * STEPS), clip_gradient=1.0)
        )
        self.seconds, self.updates, self.perplexity = 0.0, 0, float("inf")
        self._left: Iterator[tuple[Words, Words]] = iter(())

    @property
    def is_over(self) -> bool:
        """Whether it has the perplexity, or has taken too long."""
        return self.perplexity <= PERPLEXITY or self.seconds > _MOST

    def turn(self) -> None:
        """Trains for some seconds, then reads the text that was held out."""
        started = time.perf_counter()
        while time.perf_counter() - started < _TURN:
            self._step(*self._next())
        self.seconds += time.perf_counter() - started
        self.perplexity = self._held_out()

    def _next(self) -> tuple[Words, Words]:
        found = next(self._left, None)
        if found is None:
            self._left = windows(text()[0], self.batch)
            found = next(self._left)
        return found

    def _step(self, words: Words, after: Words) -> None:
        self.executor.forward(is_train=True, data=mx.nd.array(words), softmax_label=mx.nd.array(after))
        self.executor.backward()
        for number, name in enumerate(self.trained):
            self.update(number, self.executor.grad_dict[name], self.executor.arg_dict[name])
        mx.nd.waitall()
        self.updates += 1

    def _held_out(self) -> float:
        lost, count = 0.0, 0
        for words, after in windows(text()[1], self.batch):
            (likely,) = self.executor.forward(is_train=False, data=mx.nd.array(words), softmax_label=mx.nd.array(after))
            said = likely.asnumpy()[np.arange(after.size), after.T.astype(int).ravel()]  # steps first
            lost, count = lost - float(np.log(np.maximum(said, 1e-30)).sum()), count + after.size
        return float(np.exp(lost / count))


def trained(batches: Mapping[str, int]) -> Found:
    """Seconds, updates and words of each way up to the perplexity."""
    ways = {name: Training(name, batch) for name, batch in batches.items()}
    while not all(each.is_over for each in ways.values()):
        for each in ways.values():
            if not each.is_over:
                each.turn()
                print(
                    f"{each.name}, batch {each.batch}: {each.seconds:.0f} s, perplexity {each.perplexity:.1f}",
                    flush=True,
                )
    return {
        name: {"batch": each.batch, "seconds": each.seconds, "updates": each.updates, "perplexity": each.perplexity,
               "words_a_second": each.updates * each.batch * STEPS / each.seconds}
        for name, each in ways.items()
    }  # fmt: skip


def affordable() -> dict[str, int]:
    """The largest batch of each way in the bytes that stock holds at its own."""
    limit = way(model(BATCH), "stock")["total"]
    others = {name: largest(lambda batch, name=name: way(model(batch), name)["total"], limit, BATCH)  # type: ignore[misc]
              for name in WAYS[1:]}  # fmt: skip
    return {"stock": BATCH, **others}


def run(fresh: bool = False) -> list[Found]:
    """Searches the batches, then trains."""
    results = Results(NAME, fresh)
    row = results.row(model="lm_200", perplexity=int(PERPLEXITY))
    batches = results.fill(row, "batches", affordable)
    results.fill(row, "training", lambda: trained(batches))
    return results.rows


if __name__ == "__main__":
    measure_from_command_line(__doc__, run)
