"""How long is a training step with echo, where a CPU can tell: the papers' workloads at reduced sizes, side by side.

    python -m benchmarks.paper.steps [--fresh]

Stock MXNet and echo live in one process, on one thread and on the same weights, and take steps in turn. A row holds the
median of the ratios round by round with their quartiles, the predicted ratio, and the bytes of each. The sizes are in
`REDUCED`. Writes results/paper_steps.json after each workload: existing rows are measured again only with --fresh.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median, quantiles

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when mxnet is imported

from mxnet.gluon.model_zoo import vision

import echo
from benchmarks.models import Model, cnn, lm
from benchmarks.paper import nmt, speech, transformer
from benchmarks.paper.planning import VARIANTS, Found, Results, measure_from_command_line
from benchmarks.step_time import bind, in_turn

NAME = "paper_steps"
ROUNDS = 15
WAYS = ("echo", "bits", "default")
#: By workload: the size in words, and the model.
REDUCED: Mapping[str, tuple[str, Callable[[], Model]]] = {
    "nmt_tbd": ("2 layers of 256, 30 words, batch 16", partial(
        nmt.model, "nmt_tbd", nmt.Setting(2, 256, 256, 16, attention=256, steps=30))),
    "transformer": ("2 + 2 layers of 256, 8,000 words, 32 words, batch 16", partial(
        transformer.model, "transformer", transformer.Setting(2, 256, 4, 1024, 16, 32, 8000))),
    "deepspeech2": ("3 layers of 400, 120 frames, batch 16", partial(
        speech.model, "deepspeech2", speech.Setting(layers=3, hidden=400, frames=120, batch=16, characters=20))),
    "resnet50_v2": ("4 images of 112 x 112", partial(cnn, "resnet50_v2", vision.resnet50_v2, 4, 112)),
    "lm_200": ("as published", partial(lm, "lm_200", 20, 200, 10000, 20)),
}  # fmt: skip


def measured(model: Model, rounds: int = ROUNDS) -> Found:
    """The seconds of stock's step, and of each way the ratio to it, with the bytes that it holds."""
    symbols = {name: echo.optimize(model.symbol, max_planning=None, **VARIANTS[name]) for name in WAYS}
    executors = {"stock": bind(model, model.symbol), **{name: bind(model, symbols[name]) for name in WAYS}}
    seconds = in_turn(executors, rounds)
    found: Found = {"stock_ms": 1000 * median(seconds["stock"])}
    for name in WAYS:
        plan = symbols[name].plans[-1]
        ratios = [mine / its for mine, its in zip(seconds[name], seconds["stock"])]
        found["stock_bytes"] = plan.before.total
        found[name] = {**_spread(ratios), "predicted": plan.time_ratio, "total": plan.after.total}
    return found


def _spread(ratios: Sequence[float]) -> Found:
    low, _, high = quantiles(ratios, n=4)
    return {"ratio": median(ratios), "low": low, "high": high}


def run(fresh: bool = False) -> list[Found]:
    """Measures every workload at its reduced size."""
    results = Results(NAME, fresh)
    for name, (size, build) in REDUCED.items():
        row = results.row(workload=name, size=size)
        results.fill(row, "steps", lambda build=build: measured(build()))  # type: ignore[misc]
    return results.rows


if __name__ == "__main__":
    measure_from_command_line(__doc__, run)
