"""Train a translation model four times, with and without echo, and compare memory, time and losses.

    python examples/demo_nmt.py                 # or: make demo

An LSTM encoder-decoder with attention learns English-German sentences out of Django's message catalogues.
Each configuration runs in a process of its own, one after the other, from the same initial weights and over
the same batches. Then come a table, and a chart of the memory over one step. Without fused operators every
loss and trained weight has to equal stock MXNet's to the last bit, with them losses have to be equal to rounding.
Exits with 1 where they are not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import parallel_text
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    import mxnet as mx

# At the end, so that an installed echo comes before the folder of its source.
sys.path.append(str(Path(__file__).resolve().parent.parent))

#: The keyword arguments of `echo.optimize` for each configuration; None leaves the symbol as it is.
CONFIGURATIONS: dict[str, dict[str, Any] | None] = {
    "stock MXNet": None,
    "echo": {},
    "echo fuse=False": {"fuse": False},
    "fuse=False, no bound": {"fuse": False, "max_overhead": None},
}
STOCK, FUSED = "stock MXNet", "echo"
# Of a loss, after some tens of updates that each carry on the rounding of those before.
TOLERANCE = 1e-3
SEED = 7


@dataclass(frozen=True)
class Result:
    """What one configuration needed. Memory in MB of 10^6 bytes, but for `planned_mb`, which MXNet prints."""

    planned_mb: int
    peak_mb: float
    step_ms: list[float]
    losses: list[float]
    weights: str
    timeline: list[tuple[float, float]]

    @property
    def median_ms(self) -> float:
        """The median step without the first one, in which MXNet allocates its memory."""
        return statistics.median(self.step_ms[1:] or self.step_ms)


# One configuration: runs in a process of its own -----------------------------------------------------------


def work(name: str, arguments: argparse.Namespace) -> Result:
    """Train configuration `name`; prints a line for each step."""
    import mxnet as mx

    corpus = parallel_text.load()
    batches = corpus.batches(arguments.length, arguments.batch, SEED)
    symbol = _symbol(name, corpus, arguments)
    resident = _memory_mb("VmRSS")
    trace = Path(arguments.result).with_suffix(".trace.json")
    mx.profiler.set_config(profile_memory=True, filename=str(trace))
    # From here on the profiler sees every allocation; it stops after the first step, so it slows no other.
    mx.profiler.set_state("run")
    module = _module(symbol, arguments)
    losses, milliseconds = [], []
    began = time.time()
    for step in range(arguments.steps):
        loss, spent = _train_step(module, batches[step % len(batches)])
        if step == 0:
            mx.profiler.set_state("stop")
            mx.profiler.dump(finished=True)
        losses.append(loss)
        milliseconds.append(spent)
        print(f"@step {step + 1} {loss:.4f}", flush=True)
    return Result(
        planned_mb=_planned_mb(module),
        peak_mb=_memory_mb("VmHWM") - resident,
        step_ms=milliseconds,
        losses=losses,
        weights=_digest(module),
        timeline=_timeline(trace, began, milliseconds[0]),
    )


def _symbol(name: str, corpus: parallel_text.Corpus, arguments: argparse.Namespace) -> mx.sym.Symbol:
    from benchmarks.models import nmt_symbol

    vocabulary = max(len(corpus.english), len(corpus.german))
    symbol = nmt_symbol(arguments.length, arguments.hidden, vocabulary)
    options = CONFIGURATIONS[name]
    if options is None:
        return symbol
    import echo

    return echo.optimize(symbol, **options)


def _module(symbol: mx.sym.Symbol, arguments: argparse.Namespace) -> mx.mod.Module:
    """A bound module with seeded weights: nothing in here knows whether echo is in use."""
    import mxnet as mx

    shape = (arguments.batch, arguments.length)
    module = mx.mod.Module(symbol, data_names=["source", "target"], label_names=["softmax_label"])
    print("@bind", flush=True)
    module.bind([("source", shape), ("target", shape)], [("softmax_label", shape)])
    mx.random.seed(SEED)
    module.init_params(mx.init.Xavier())
    # The symbol's loss is a mean over the words already.
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.002, "rescale_grad": 1.0})
    mx.nd.waitall()
    return module


def _train_step(module: mx.mod.Module, batch: parallel_text.Batch) -> tuple[float, float]:
    """One update; gives (loss in nats a word, milliseconds)."""
    import mxnet as mx

    inputs = [mx.nd.array(batch.source), mx.nd.array(batch.target)]
    feed = mx.io.DataBatch(inputs, [mx.nd.array(batch.label)])
    mx.nd.waitall()
    began = time.perf_counter()
    module.forward_backward(feed)
    module.update()
    mx.nd.waitall()
    spent = 1e3 * (time.perf_counter() - began)
    return _loss(module.get_outputs()[0].asnumpy(), batch.label), spent


def _loss(probabilities: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> float:
    """The mean of -log p over all words but padding; rows of `probabilities` are steps-major."""
    words = label.T.reshape(-1).astype(np.int64)
    chosen = probabilities[np.arange(words.size), words].astype(np.float64)
    return float(-np.log(chosen[words != parallel_text.PAD]).mean())


def _planned_mb(module: mx.mod.Module) -> int:
    text = module._exec_group.execs[0].debug_str()
    total = re.search(r"Total (\d+) MB allocated", text)
    if total is None:
        raise ValueError(f"expected 'Total N MB allocated' in MXNet's printout, got {text[-200:]!r}")
    return int(total.group(1))


def _digest(module: mx.mod.Module) -> str:
    """A fingerprint of all weights: equal only where every bit is."""
    weights, _ = module.get_params()
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].asnumpy().tobytes())
    return digest.hexdigest()


def _memory_mb(field: str) -> float:
    """`VmRSS` (resident now) or `VmHWM` (its peak so far: ru_maxrss, but of this program only)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"expected a line {field} in /proc/self/status")


def _timeline(trace: Path, began: float, step_ms: float) -> list[tuple[float, float]]:
    """(percent of the step's time, MB) at each allocation of the first step, from MXNet's profiler.

    MXNet allocates a chunk when an operator first writes to it, so this rises towards the planned total.
    """
    name = "Memory: cpu/0"
    events = json.loads(trace.read_text())["traceEvents"]
    counts = sorted((event["ts"], event["args"][name]) for event in events if event.get("name") == name)
    moments = [((stamp - began * 1e6) / (step_ms * 10), size / 1e6) for stamp, size in counts]
    before = [size for moment, size in moments if moment < 0]
    during = [(moment, size) for moment, size in moments if 0 <= moment <= 100]
    return [(0.0, before[-1] if before else 0.0), *during, (100.0, during[-1][1] if during else 0.0)]


# All configurations: runs the workers and compares ---------------------------------------------------------


class WorkerFailed(RuntimeError):
    """A configuration could not be trained; the message ends with what its process wrote last."""


def run_all(arguments: argparse.Namespace, console: Console) -> dict[str, Result]:
    """Train each configuration in a process of its own, in turn, so that none slows another."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]:14}"),
        TimeElapsedColumn(),
    )
    results = {}
    with Progress(*columns, console=console) as progress, tempfile.TemporaryDirectory() as folder:
        tasks = {name: progress.add_task(name, total=arguments.steps, start=False, note="") for name in CONFIGURATIONS}
        for number, (name, task) in enumerate(tasks.items()):
            progress.start_task(task)
            results[name] = _run_worker(name, Path(folder) / f"{number}.json", arguments, progress, task)
            progress.stop_task(task)
    return results


def _run_worker(name: str, result: Path, arguments: argparse.Namespace, progress: Progress, task: Any) -> Result:
    command = [sys.executable, __file__, "--worker", name, "--result", str(result)]
    for option in ("steps", "batch", "length", "hidden"):
        command += [f"--{option}", str(getattr(arguments, option))]
    # Its messages go to a file: a pipe that nobody reads would block a talkative worker.
    with result.with_suffix(".log").open("w+") as log:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            for line in process.stdout or ():
                if line.startswith("@bind"):
                    progress.update(task, note="planning")
                elif line.startswith("@step"):
                    _, step, loss = line.split()
                    progress.update(task, completed=int(step), note=f"loss {loss}")
        if process.returncode != 0:
            log.seek(0)
            raise WorkerFailed(f"{name}: exit status {process.returncode}\n{log.read()[-3000:]}")
    return Result(**json.loads(result.read_text()))


def table(results: dict[str, Result]) -> Table:
    """The comparison as a rich table, a row for each configuration."""
    stock = results[STOCK]
    shown = Table(title="Training the translation model", box=box.SIMPLE_HEAVY, show_edge=False, collapse_padding=True)
    shown.add_column("", no_wrap=True)
    headings = (
        "planned\nMB",
        "times\nless",
        "peak RSS\nMB",
        "ms per\nstep",
        "time",
        "largest loss\ndifference",
    )
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        shown.add_row(
            name,
            f"{result.planned_mb}",
            f"{stock.planned_mb / max(result.planned_mb, 1):.2f}x",
            f"{result.peak_mb:.0f}",
            f"{result.median_ms:.0f}",
            f"{result.median_ms / stock.median_ms:.2f}x",
            f"{largest_difference(stock, result):g}",
        )
    shown.caption = "peak RSS: growth since bind; weights, gradients and optimizer included"
    return shown


def largest_difference(stock: Result, result: Result) -> float:
    """The largest distance between the losses of one step."""
    return max(abs(a - b) for a, b in zip(stock.losses, result.losses))


def chart(results: dict[str, Result], path: Path) -> None:
    """Write the memory over the first training step, as MXNet's profiler counted it, to `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for name, result in results.items():
        moments, sizes = zip(*result.timeline)
        axes.step(moments, sizes, where="post", label=f"{name}: {max(sizes):.0f} MB")
    axes.set(
        title="Memory over one training step (the first: MXNet allocates as it goes)",
        xlabel="percent of the step",
        ylabel="MB allocated through MXNet",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def differences(results: dict[str, Result]) -> list[str]:
    """A sentence for each configuration that did not train as stock MXNet did: bit by bit, or fused to rounding."""
    stock = results[STOCK]
    found = []
    for name, result in results.items():
        if name == FUSED:
            distance = largest_difference(stock, result)
            if not distance <= TOLERANCE * max(stock.losses):
                found.append(f"{name}: a loss differs from stock by {distance:g}, expected no more than rounding")
            continue
        wrong = [step for step, (a, b) in enumerate(zip(stock.losses, result.losses), 1) if a != b]
        if wrong:
            distance = largest_difference(stock, result)
            found.append(f"{name}: the loss differs from stock in steps {wrong}, by up to {distance:g}")
        elif result.weights != stock.weights:
            found.append(f"{name}: the losses are equal, but the weights after the last step are not")
    return found


def compare(arguments: argparse.Namespace) -> int:
    """Run and report all configurations; gives the exit status."""
    console = Console()
    try:
        corpus = parallel_text.load()
        corpus.batches(arguments.length, arguments.batch, SEED)
    except (parallel_text.MissingText, ValueError) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return 2
    console.print(
        f"{len(corpus.examples)} English-German pairs; {arguments.steps} steps of {arguments.batch} sentences"
        f" with {arguments.length} positions, {arguments.hidden} units"
    )
    try:
        results = run_all(arguments, console)
    except WorkerFailed as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    path = arguments.out / "memory-over-the-step.png"
    chart(results, path)
    console.print(table(results))
    console.print(f"memory over the step: {path}")
    found = differences(results)
    for sentence in found:
        console.print(f"error: {sentence}", style="red", markup=False, soft_wrap=True)
    if not found:
        losses = results[STOCK].losses
        console.print(
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}: with fuse=False each of the {len(losses)} losses, and every"
            " trained weight, is equal to stock's to the last bit; fused, they are to rounding"
        )
    return 1 if found else 0


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20, help="updates for each configuration (default: 20)")
    parser.add_argument("--batch", type=int, default=64, help="sentences in a batch (default: 64)")
    parser.add_argument("--length", type=int, default=30, help="positions in a sentence (default: 30)")
    parser.add_argument("--hidden", type=int, default=256, help="units of each layer (default: 256)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the chart (default: out)")
    parser.add_argument("--worker", choices=CONFIGURATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    for option in ("steps", "batch", "length", "hidden"):
        if getattr(arguments, option) < 1:
            parser.error(f"--{option}: expected a positive number, got {getattr(arguments, option)}")
    return arguments


def main() -> int:
    """Be the worker of one configuration, or run them all."""
    arguments = parse()
    if arguments.worker is None:
        return compare(arguments)
    result = work(arguments.worker, arguments)
    arguments.result.write_text(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
