"""Does unmodified Sockeye train the same under ECHO=1, in how much less memory, and how fast?

    make sockeye
    .venv-sockeye/bin/python -m benchmarks.sockeye_training [--rounds N] [MODEL ...]

Each run is a process ``python -m sockeye.train`` on English-German sentences, with the same seed. The first two of a
model run under MXNet's profiler, with no bound on time and no fused operators: they give the memory. Then stock, echo
without fused operators and echo at its defaults take turns: they give the speed. The runs without fused operators must
leave the same perplexities and files; with them, perplexities may differ a little. Logs and models stay in
out/sockeye/. Writes results/sockeye_training.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from benchmarks.record import asked, known_rows, parser, save
from benchmarks.sockeye_log import (
    counter_peak,
    differences,
    fingerprint,
    largest_plan,
    last_perplexity,
    updates_per_second,
)
from examples.parallel_text import sentence_pairs, tokenized

OUT = Path(__file__).resolve().parents[1] / "out" / "sockeye"
UPDATES, CHECKPOINTS = 60, 4  # the first checkpoint comes after all buckets were bound
_HELD_OUT = 10  # every tenth pair is for validation
_TRACE = "profile.json"

_COMMON = (
    "--source ../train.en --target ../train.de --validation-source ../dev.en --validation-target ../dev.de "
    "--output model --use-cpu --seed 1 --batch-size 64 --batch-type sentence --max-seq-len 30 --bucket-width 10 "
    f"--num-layers 1:1 --num-embed 256 --max-updates {UPDATES} --checkpoint-interval {UPDATES // CHECKPOINTS}"
)
_RNN = "--encoder rnn --decoder rnn --rnn-num-hidden 256 --rnn-attention-type mlp"
MODELS = {
    "rnn": f"{_RNN}",
    "rnn_layernorm": f"{_RNN} --layer-normalization --embed-dropout 0.1 --rnn-dropout-inputs 0.1 "
    "--rnn-dropout-states 0.1",
    "transformer": "--encoder transformer --decoder transformer --transformer-model-size 256 "
    "--transformer-attention-heads 8 --transformer-feed-forward-num-hidden 1024",
}
# the project's goals: planned MB of the largest bucket with no bound on time, as shares of stock, and updates
# a second at the defaults
BARS = {"rnn": 0.37, "rnn_layernorm": 0.30, "transformer": 0.75}
UPDATES_BAR = 0.9
# The counter also holds batches on their way: its fall may differ by this part, and by the rounding of echo's line to
# whole MB.
COUNTER_TOLERANCE, ROUNDING_MB = 0.02, 1

# MXNet hands out four temporary spaces in turn, each as large as its largest user: by chance one of them takes 16 MB
# more or less here. With a single one the counter of two runs can be compared.
_PROFILER = {"MXNET_PROFILER_AUTOSTART": "1", "MXNET_PROFILER_MODE": "8", "MXNET_CPU_TEMP_COPY": "1"}  # 8: memory
STOCK: dict[str, str] = {}
DEFAULT = {"ECHO": "1", "ECHO_LOG": "DEBUG"}
UNFUSED = {**DEFAULT, "ECHO_FUSE": "0"}
UNBOUNDED = {**UNFUSED, "ECHO_MAX_OVERHEAD": "none"}
PERPLEXITY_TOLERANCE = 0.02  # of the last one with fused operators: rounding, after some tens of updates


class TrainingFailed(RuntimeError):
    """Sockeye ended with an error; the message shows the end of its log."""


@dataclass(frozen=True)
class Run:
    """One training process: its output, its seconds, and all that must be the same in every run."""

    log: str
    seconds: float
    fingerprint: Mapping[str, str]
    counter_peak: int | None = None


def write_text(folder: Path) -> None:
    """Writes Django's messages as one tokenized sentence a line: train.en, train.de, dev.en, dev.de."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = tokenized(sentence_pairs(("django",)))
    held_out = [number % _HELD_OUT == 0 for number in range(len(examples))]
    for name, wanted in (("train", False), ("dev", True)):
        part = [example for example, out in zip(examples, held_out) if out == wanted]
        for suffix, side in (("en", "source"), ("de", "target")):
            lines = (" ".join(getattr(example, side)) + "\n" for example in part)
            (folder / f"{name}.{suffix}").write_text("".join(lines), encoding="utf-8")


def train(model: str, run: str, variables: Mapping[str, str], options: Sequence[str]) -> Run:
    """Trains a model in ``out/sockeye/MODEL-RUN`` with these environment variables.

    Raises:
        TrainingFailed: the process ended with an error.
    """
    folder = OUT / f"{model}-{run}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ours = ("ECHO", "MXNET_PROFILER")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment.update(variables, ECHO_CACHE_DIR=str(OUT / "cache"))
    command = [sys.executable, "-m", "sockeye.train", *_COMMON.split(), *MODELS[model].split(), *options]
    print(f"  {run:<14}", end="", flush=True)
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", check=False)  # fmt: skip
    seconds = time.perf_counter() - started
    (folder / "log").write_text(done.stdout, encoding="utf-8")
    if done.returncode:
        raise TrainingFailed(f"{' '.join(command)}\nin {folder} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    trace = folder / _TRACE
    peak = counter_peak(json.loads(trace.read_text(encoding="utf-8"))) if trace.exists() else None
    print(f"{seconds:4.0f} s", flush=True)
    return Run(done.stdout, seconds, fingerprint(done.stdout, folder / "model"), peak)


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Trains one model 2 + 3 ``rounds`` times; its row in the results."""
    print(f"{model}: {2 + 3 * rounds} runs of {UPDATES} updates", flush=True)
    decoding, none = ("--decode-and-evaluate", "16"), ("--decode-and-evaluate", "0")
    stock = train(model, "stock", {**STOCK, **_PROFILER}, decoding)
    unbounded = train(model, "echo", {**UNBOUNDED, **_PROFILER}, decoding)
    different = set(differences(stock.fingerprint, unbounded.fingerprint))
    pairs, fused = [], []
    for number in range(rounds):
        names = [("stock", STOCK), ("default", UNFUSED), ("fused", DEFAULT)]
        runs = {name: train(model, f"{name}-{number + 1}", variables, none)
                for name, variables in (names if number % 2 else names[::-1])}  # fmt: skip
        different.update(differences(runs["stock"].fingerprint, runs["default"].fingerprint))
        pairs.append((runs["stock"], runs["default"]))
        fused.append((runs["stock"], runs["fused"]))
    row = {
        "model": model,
        **memory(stock, unbounded),
        "bar": BARS[model],
        "updates_bar": UPDATES_BAR,
        "different": sorted(different),
        "default": speed(pairs),
        "fused": {**speed(fused), "perplexities": [last_perplexity(run.log) for run in fused[-1]]},
        "rounds": rounds,
    }
    row["missed"] = missed(row)
    return row


def memory(stock: Run, unbounded: Run) -> dict[str, Any]:
    """Planned MB of the largest bucket, and by how many MB the peak of MXNet's storage counter falls."""
    plan = largest_plan(unbounded.log)
    if stock.counter_peak is None or unbounded.counter_peak is None:
        raise TrainingFailed(f"MXNet's profiler wrote no {_TRACE}")
    return {
        "stock_mb": plan.stock_mb,
        "none": {"mb": plan.mb, "predicted_change": plan.change, "feature_maps": plan.feature_maps},
        "counter_mb": {"stock": stock.counter_peak / 1e6, "none": unbounded.counter_peak / 1e6},
    }


def speed(pairs: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    """Echo at its defaults against stock, from runs in turn.

    ``updates_ratio`` is the median over the checkpoints after the first, by which all buckets were bound;
    ``quickest_ratio`` compares the quickest times of the same updates, which other work on the machine disturbs less;
    ``command_ratio`` is of the whole command, planning included.
    """
    timed = [tuple(updates_per_second(run.log)[1:] for run in pair) for pair in pairs]
    ratios = [echo / plain for stock, default in timed for plain, echo in zip(stock, default)]
    # the same number of updates between all checkpoints, so seconds add up as one over the updates a second
    seconds = [sum(1 / max(figures) for figures in zip(*runs)) for runs in zip(*timed)]
    plan = largest_plan(pairs[-1][1].log)
    return {
        "mb": plan.mb,
        "predicted_change": plan.change,
        "updates_ratio": statistics.median(ratios),
        "quickest_ratio": seconds[0] / seconds[1],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "command_ratio": statistics.median(stock.seconds / default.seconds for stock, default in pairs),
    }


def missed(row: Mapping[str, Any]) -> list[str]:
    """The bars that are not met, in words."""
    found = [f"differs: {name}" for name in row["different"]]
    share = row["none"]["mb"] / row["stock_mb"]
    if share > row["bar"]:
        found.append(f"{share:.2f} of stock's planned MB, expected at most {row['bar']:.2f}")
    planned, counted = row["stock_mb"] - row["none"]["mb"], row["counter_mb"]["stock"] - row["counter_mb"]["none"]
    if abs(planned - counted) > COUNTER_TOLERANCE * planned + ROUNDING_MB:
        found.append(f"the storage counter fell by {counted:.1f} MB, expected {planned} as planned")
    if row["default"]["updates_ratio"] < row["updates_bar"]:
        ratio = row["default"]["updates_ratio"]
        found.append(f"{ratio:.2f} of stock's updates a second, expected at least {row['updates_bar']}")
    stock, fused = row["fused"]["perplexities"]
    if not abs(fused - stock) <= PERPLEXITY_TOLERANCE * stock:
        found.append(f"perplexity {fused} with fused operators, expected {stock} but for rounding")
    return found


def describe(row: Mapping[str, Any]) -> str:
    """The row in words."""
    none, default, counter = row["none"], row["default"], row["counter_mb"]
    return (
        f"  largest bucket {row['stock_mb']} MB -> {none['mb']} MB planned with no bound on time "
        f"({none['mb'] / row['stock_mb']:.2f}), {default['mb']} MB at the defaults\n"
        f"  peak of MXNet's storage {counter['stock']:.0f} MB -> {counter['none']:.0f} MB\n"
        f"  at the defaults {default['updates_ratio']:.2f} of stock's updates a second (quickest "
        f"{default['quickest_ratio']:.2f}), {default['command_ratio']:.2f} of its speed with start and planning\n"
        f"  with fused operators {row['fused']['mb']} MB, {row['fused']['updates_ratio']:.2f} of stock's updates\n"
        f"  {'all bars met, every file the same' if not row['missed'] else 'MISSED: ' + '; '.join(row['missed'])}"
    )


def main() -> int:
    """Measures the models named on the command line, all by default; 1 where a bar is missed."""
    options = parser(__doc__, *MODELS)
    options.add_argument("--rounds", type=int, default=3, help="pairs of runs that are timed (default 3)")
    arguments = options.parse_args()
    models = asked(arguments.names, MODELS)
    if arguments.rounds < 1:
        options.error(f"expected at least 1 round, got {arguments.rounds}")
    if importlib.util.find_spec("sockeye") is None:
        options.error("Sockeye is not installed here: `make sockeye` makes an environment for it and runs this")
    shutil.rmtree(OUT / "cache", ignore_errors=True)  # planning from the start, as on a new machine
    write_text(OUT)
    rows = {row["model"]: row for row in known_rows("sockeye_training")}
    for model in models:
        rows[model] = measure(model, arguments.rounds)
        print(describe(rows[model]), flush=True)
        path = save("sockeye_training", [rows[name] for name in MODELS if name in rows], packages=("sockeye",))
    print("written:", path.name)
    return int(any(rows[model]["missed"] for model in models))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrainingFailed as error:
        sys.exit(f"\nerror: {error}")
