"""Trains a tiny model of unmodified Sockeye 1.18 on the fake GPU with ECHO=1: sockeye_training.py OPTIONS...

Works in the current folder, on sentences of random words. Prints JSON: planned and bound MB of each graph that was
bound, how many fused operators it has, and how many bytes its plan saves; the most bytes of the device that were in use
at once, and what the device complained about.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sockeye import train  # its server of processes comes before mxnet

from echo.runtime import bind
from tests.fake_gpu import device

COMMON = (
    "--source train.en --target train.de --validation-source dev.en --validation-target dev.de --output model "
    "--device-ids 0 --disable-device-locking --seed 1 --batch-size 256 --batch-type sentence --max-seq-len 16 "
    "--bucket-width 8 --decode-and-evaluate 0 --num-layers 1:1 --num-embed 128 --max-updates 4 --checkpoint-interval 4"
)


def write_text() -> None:
    """Sentences of 2 to 15 words out of 50; the device computes nothing that could be learned."""
    words = random.Random(0)
    for name, lines in (("train", 512), ("dev", 64)):
        for suffix in ("en", "de"):
            text = (" ".join(f"w{words.randrange(50)}" for _ in range(words.randint(2, 15))) for _ in range(lines))
            Path(f"{name}.{suffix}").write_text("\n".join(text) + "\n", encoding="utf-8")


def main() -> None:
    """Trains, with a witness at each bind."""
    rows: list[dict[str, int]] = []
    bound = bind.with_plan

    def witnessed(*call: Any, **options: Any) -> Any:
        plans: list[Any] = []
        executor = bound(*call, **{**options, "record": plans.append})
        total = re.search(r"Total (\d+) MB allocated", executor.debug_str())
        assert total is not None
        fused = executor.debug_str().count("Op:_echo_")
        before, after = plans[-1].before.planned, plans[-1].after.planned
        rows.append({"planned": after >> 20, "bound": int(total[1]), "fused": fused, "saved": before - after})
        return executor

    bind.with_plan = witnessed
    # MXNet's kernels compute nothing here: a loss or a norm would be whatever memory held, and its root or power fails.
    train.mx.nd.NDArray.asscalar = lambda array: np.zeros((), array.dtype)[()]
    write_text()
    sys.argv = ["sockeye.train", *COMMON.split(), *sys.argv[1:]]
    with device.without_kernels():
        train.main()
    print(json.dumps({"rows": rows, "peak": device.peak(), "complaints": device.complaints()}))


if __name__ == "__main__":
    main()
