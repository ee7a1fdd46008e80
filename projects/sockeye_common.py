"""The common part of both generations of Sockeye: the text, and the files that a training leaves."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sockeye_log import fingerprint
from examples.parallel_text import sentence_pairs, tokenized
from projects.witness import Arrays

_HELD_OUT = 10
TEXT = (
    "--source ../train.en --target ../train.de --validation-source ../dev.en --validation-target ../dev.de "
    "--output model --use-cpu --seed 1 --batch-size 16 --batch-type sentence --max-seq-len 20 --bucket-width 10 "
    "--decode-and-evaluate 0"
)


def write_text(pairs: int = 600) -> None:
    """Django's first messages as a tokenized sentence a line, next to the current folder: Sockeye notes the paths."""
    examples = tokenized(sentence_pairs(("django",)))[:pairs]
    for name, held_out in (("train", False), ("dev", True)):
        part = [one for number, one in enumerate(examples) if (number % _HELD_OUT == 0) == held_out]
        for suffix, side in (("en", "source"), ("de", "target")):
            lines = (" ".join(getattr(one, side)) + "\n" for one in part)
            Path(f"../{name}.{suffix}").write_text("".join(lines), encoding="utf-8")


def train(options: str, steps: int) -> Arrays:
    """``python -m sockeye.train`` in this process; digests of all files that it wrote, but for what holds times."""
    from sockeye import train as program

    write_text()
    updates = f"--max-updates {steps} --checkpoint-interval {steps}"
    sys.argv = ["sockeye.train", *TEXT.split(), *updates.split(), *options.split()]
    program.main()
    logging.shutdown()
    found = fingerprint(Path("model/log").read_text(encoding="utf-8"), Path("model"))
    return {name: digest(value) for name, value in found.items()}


def digest(text: str) -> Any:
    """Text as an array, so that it is compared like one."""
    return np.frombuffer(text.encode(), dtype=np.uint8)
