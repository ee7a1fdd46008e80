"""A word language model on Python's own documentation, with or without echo.

    python examples/lm_pydoc.py --echo

The text is `pydoc_data.topics` of the standard library: what `help("for")` prints. A two-layer LSTM of
`mx.rnn` cells learns through `mx.mod.Module` to foretell the next word; echo takes one line.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

import mxnet as mx
import numpy as np
from rich.console import Console
from rich.progress import track

if TYPE_CHECKING:
    from numpy.typing import NDArray

# At the end, so that an installed echo comes before the folder of its source.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.models import lm_symbol

LAYERS = 2
SEED = 7
UNKNOWN = "<unk>"


def words_of_documentation() -> list[str]:
    """The words and punctuation marks of all topics, lower-case, in the order of the topics' names."""
    from pydoc_data.topics import topics

    return [word for name in sorted(topics) for word in re.findall(r"\w+|[^\w\s]", topics[name].lower())]


def encode(words: list[str], min_frequency: int = 3) -> tuple[NDArray[np.float32], int]:
    """Ids of `words` and the number of different ids; rare words share id 0."""
    counts = Counter(words)
    known = [UNKNOWN, *sorted(word for word, count in counts.items() if count >= min_frequency)]
    ids = {word: number for number, word in enumerate(known)}
    return np.array([ids.get(word, 0) for word in words], dtype=np.float32), len(known)


def windows(ids: NDArray[np.float32], batch: int, steps: int) -> Iterator[mx.io.DataBatch]:
    """Successive windows over `batch` parallel streams of the text; the label is the next word."""
    length = (len(ids) - 1) // batch
    inputs = ids[: length * batch].reshape(batch, length)
    labels = ids[1 : length * batch + 1].reshape(batch, length)
    for start in range(0, length - steps + 1, steps):
        part = slice(start, start + steps)
        yield mx.io.DataBatch([mx.nd.array(inputs[:, part])], [mx.nd.array(labels[:, part])])


def build(vocabulary: int, arguments: argparse.Namespace) -> mx.mod.Module:
    """A bound module; `--echo` changes nothing but the symbol."""
    symbol = lm_symbol(arguments.bptt, arguments.hidden, LAYERS, vocabulary)
    if arguments.echo:
        import echo

        symbol = echo.optimize(symbol, **arguments.max_overhead)
    shape = (arguments.batch, arguments.bptt)
    module = mx.mod.Module(symbol)
    module.bind([("data", shape)], [("softmax_label", shape)])
    mx.random.seed(SEED)
    module.init_params(mx.init.Xavier())
    options = {"learning_rate": 0.003, "rescale_grad": 1 / (arguments.batch * arguments.bptt)}
    module.init_optimizer(optimizer="adam", optimizer_params=options)
    return module


def train_epoch(module: mx.mod.Module, batches: list[mx.io.DataBatch], title: str, console: Console) -> float:
    """One update for each batch; gives the perplexity over all of their words."""
    nats = 0.0
    for batch in track(batches, title, console=console):
        module.forward_backward(batch)
        module.update()
        probabilities = module.get_outputs()[0].asnumpy()
        # The model's rows are steps-major.
        words = batch.label[0].asnumpy().T.reshape(-1).astype(np.int64)
        chosen = probabilities[np.arange(words.size), words].astype(np.float64)
        nats -= float(np.log(np.maximum(chosen, 1e-30)).mean())
    return math.exp(nats / len(batches))


def planned_mb(module: mx.mod.Module) -> str:
    """The line in which MXNet's planner says how much it reserved."""
    found = re.search(r"Total \d+ MB allocated", module._exec_group.execs[0].debug_str())
    return found.group() if found else "no total in MXNet's printout"


def overhead(text: str) -> dict[str, Any]:
    """The keyword arguments of `echo.optimize` for the command line's `text`: a fraction, or none."""
    if text.lower() == "none":
        return {"max_overhead": None}
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"expected a fraction such as 0.25, or none, got {text!r}")
    return {"max_overhead": value}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--echo", dest="echo", action="store_true", help="let echo save memory (default)")
    parser.add_argument("--no-echo", dest="echo", action="store_false", help="stock MXNet")
    parser.add_argument(
        "--max-overhead",
        type=overhead,
        default={},
        metavar="FRACTION",
        help="time that echo may add to a step, such as 0.25, or none for the least memory (default: echo's)",
    )
    parser.add_argument("--epochs", type=int, default=3, help="passes over the text (default: 3)")
    parser.add_argument("--steps", type=int, help="updates in an epoch (default: the whole text)")
    parser.add_argument("--batch", type=int, default=32, help="parallel streams (default: 32)")
    parser.add_argument("--bptt", type=int, default=35, help="words in a window (default: 35)")
    parser.add_argument("--hidden", type=int, default=200, help="units of each layer (default: 200)")
    parser.set_defaults(echo=True)
    arguments = parser.parse_args(words)
    for option in ("epochs", "steps", "batch", "bptt", "hidden"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            parser.error(f"--{option}: expected a positive number, got {value}")
    return arguments


def main() -> int:
    """Train, and print the perplexity of each epoch."""
    arguments = parse()
    console = Console()
    ids, vocabulary = encode(words_of_documentation())
    batches = list(windows(ids, arguments.batch, arguments.bptt))[: arguments.steps]
    if not batches:
        console.print(f"error: {len(ids)} words are too few for --batch {arguments.batch} --bptt {arguments.bptt}")
        return 2
    module = build(vocabulary, arguments)
    console.print(f"{len(ids)} words, {vocabulary} of them different; {planned_mb(module)}")
    for epoch in range(1, arguments.epochs + 1):
        perplexity = train_epoch(module, batches, f"epoch {epoch}", console)
        console.print(f"epoch {epoch}: perplexity {perplexity:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
