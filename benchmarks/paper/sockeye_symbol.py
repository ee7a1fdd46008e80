"""Builds the symbol of a training as Sockeye 1.18 does, in a process that has not imported MXNet before.

    python -m benchmarks.paper.sockeye_symbol FOLDER SOURCE_WORDS TARGET_WORDS OPTION_OF_SOCKEYE_TRAIN ...

leaves ``symbol.json`` in the folder. `benchmarks.paper.sockeye` runs it.
"""

from __future__ import annotations

import argparse
import sys


def build(folder: str, source_words: int, target_words: int, options: list[str]) -> None:
    """Goes Sockeye's way from its command line to the symbol, which it saves as it binds it.

    It is bound for one sentence: the symbol does not depend on how many there are.
    """
    from sockeye import train  # first of all: its server of processes comes before mxnet

    # isort: split
    import mxnet as mx
    from sockeye import arguments, training

    parser = argparse.ArgumentParser()
    arguments.add_train_cli_args(parser)
    found = parser.parse_args(options)
    steps, _ = found.max_seq_len
    config = train.create_model_config(found, [source_words], target_words, steps, steps, config_data=None)
    data = [mx.io.DataDesc("source", (1, steps, 1)), mx.io.DataDesc("target", (1, steps))]
    label = [mx.io.DataDesc("target_label", (1, steps))]
    training.TrainingModel(config, [mx.cpu()], folder, data, label, (steps, steps), bucketing=True)


if __name__ == "__main__":
    build(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
