"""Train a translation model four times, with and without echo, and compare memory, time and losses.

    python examples/demo_nmt.py                 # or: make demo

An LSTM encoder-decoder with attention learns English-German sentences out of Django's message catalogues.
Each configuration runs in a process of its own, one after the other, from the same initial weights and over
the same batches. Then come a table, and a picture of the memory over one step. Without fused operators every
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
from typing import TYPE_CHECKING, Any, Callable

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
    """The memory of one configuration in MB of 10^6 bytes: planned, most in MXNet's storage, growth of the process."""

    planned_mb: int
    storage_mb: float
    peak_mb: float
    step_ms: list[float]
    losses: list[float]
    weights: str

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
        storage_mb=_storage_mb(trace),
        peak_mb=_memory_mb("VmHWM") - resident,
        step_ms=milliseconds,
        losses=losses,
        weights=_digest(module),
    )


def _model(corpus: parallel_text.Corpus, arguments: argparse.Namespace) -> mx.sym.Symbol:
    from benchmarks.models import nmt_symbol

    vocabulary = max(len(corpus.english), len(corpus.german))
    return nmt_symbol(arguments.length, arguments.hidden, vocabulary)


def _symbol(name: str, corpus: parallel_text.Corpus, arguments: argparse.Namespace) -> mx.sym.Symbol:
    symbol = _model(corpus, arguments)
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
    return round(int(total.group(1)) * 2**20 / 1e6)  # MXNet's MB are 2^20 bytes


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


def _storage_mb(trace: Path) -> float:
    """The most that MXNet's storage held in the first step, in which it allocates all, from MXNet's profiler."""
    name = "Memory: cpu/0"
    events = json.loads(trace.read_text())["traceEvents"]
    return max((float(event["args"][name]) / 1e6 for event in events if event.get("name") == name), default=0.0)


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
    if not console.is_terminal:  # a file or a pipe would see nothing until the end
        return _run_all_into_a_file(arguments, console)
    with Progress(*columns, console=console) as progress, tempfile.TemporaryDirectory() as folder:
        tasks = {name: progress.add_task(name, total=arguments.steps, start=False, note="") for name in CONFIGURATIONS}
        for number, (name, task) in enumerate(tasks.items()):
            progress.start_task(task)

            def show(note: str, step: int = 0, task: Any = task) -> None:
                progress.update(task, completed=step, note=note)

            results[name] = _run_worker(name, Path(folder) / f"{number}.json", arguments, show)
            progress.stop_task(task)
    return results


def _run_all_into_a_file(arguments: argparse.Namespace, console: Console) -> dict[str, Result]:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(CONFIGURATIONS):

            def say(note: str, step: int = 0, name: str = name) -> None:
                if step in (0, 1, arguments.steps):
                    console.print(f"{name}: {note}", soft_wrap=True)
                    console.file.flush()

            say("starts")
            results[name] = _run_worker(name, Path(folder) / f"{number}.json", arguments, say)
    return results


def _run_worker(name: str, result: Path, arguments: argparse.Namespace, say: Callable[..., None]) -> Result:
    """Trains a configuration; ``say`` shows a note, and how many steps are done."""
    command = [sys.executable, __file__, "--worker", name, "--result", str(result)]
    for option in ("steps", "batch", "length", "hidden"):
        command += [f"--{option}", str(getattr(arguments, option))]
    # Its messages go to a file: a pipe without a reader would block a talkative worker.
    with result.with_suffix(".log").open("w+") as log:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            for line in process.stdout or ():
                if line.startswith("@bind"):
                    say("planning" if CONFIGURATIONS[name] is not None else "binding")
                elif line.startswith("@step"):
                    _, step, loss = line.split()
                    say(f"loss {loss}", int(step))
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
        "storage\nMB",
        "process\nMB",
        "ms per\nstep",
        "time",
        "loss\noff by",
    )
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        shown.add_row(
            name,
            f"{result.planned_mb}",
            f"{stock.planned_mb / max(result.planned_mb, 1):.2f}x" if stock.planned_mb >= 10 else "-",
            _megabytes(result.storage_mb),
            _megabytes(result.peak_mb),
            f"{result.median_ms:.0f}",
            f"{result.median_ms / stock.median_ms:.2f}x",
            f"{largest_difference(stock, result):.1g}",
        )
    shown.caption = (
        "planned: by MXNet for the two passes, in whole MB as it prints them; storage: that, weights, gradients and "
        "optimizer, at the peak of step 1; process: that, workspaces and oneDNN's memory, as growth since bind to the "
        "peak of the process"
    )
    return shown


def _megabytes(size: float) -> str:
    return f"{size:.{0 if size >= 10 else 1}f}"


def largest_difference(stock: Result, result: Result) -> float:
    """The largest distance between the losses of one step."""
    return max(abs(a - b) for a, b in zip(stock.losses, result.losses))


def picture(corpus: parallel_text.Corpus, arguments: argparse.Namespace, path: Path) -> None:
    """Draw the memory over a training step, without echo and with it, as `mxecho profile` draws it on its pages."""
    import echo
    from echo.report.pages import save_over_step

    shape = (arguments.batch, arguments.length)
    shapes = {name: shape for name in ("source", "target", "softmax_label")}
    profile = echo.profile(_model(corpus, arguments), compare=("echo",), **shapes)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_over_step(profile, path, "Feature maps and gradients alive over one training step")


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
    console.print("Reading English-German sentences ...")
    console.file.flush()
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
    console.print(table(results))
    picture(corpus, arguments, path)
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
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (default: out)")
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
