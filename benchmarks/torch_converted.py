"""Converted models against MXNet: memory and steps of eager mode, and of echo's backend.

    python -m benchmarks.torch_converted [--threads 1] [MODEL ...]

Needs torch here, and MXNet in the environment .venv. Both sides compute all outputs and the gradients of all
parameters. A peak is all that a step allocates, gradients too, which each step makes again; parameters and inputs are
not counted. MXNet's is what it plans, with the workspaces of fused operators and the gradients. Echo's backend is
given MXNet's bytes with echo as its budget. Steps of all settings and of MXNet's executors are measured in turns; the
result is a median. Writes results/torch_converted.json after each model.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from typing import Any, Iterator

import torch
from torch import nn

from benchmarks.record import asked, known_rows, parser, save
from benchmarks.torch_measured import Setting, peak_bytes
from echo.errors import BudgetError
from echo.torch import Backend, backend, convert
from tests.support.mxnet_process import PYTHON, receive, send, start

MODELS = ("nmt", "deepspeech2")
ROUNDS = 7  # steps of each setting that count
NEAR_LEAST = 1.01  # times the least that a search reached: a budget that the next one keeps too


class Mxnet:
    """A process with MXNet's executors of a model, and what it says about that model."""

    def __init__(self, name: str, threads: int) -> None:
        self._process = start("benchmarks.converted_mxnet", name, OMP_NUM_THREADS=str(threads))
        self.model: dict[str, Any] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return receive(self._process.stdout)

    def seconds(self, executor: str) -> float:
        """Takes a step."""
        assert self._process.stdin is not None
        send(self._process.stdin, executor)
        return float(self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


class Step(nn.Module):
    """A converted model whose outputs are kept, as MXNet keeps them, next to their sum, which has gradients."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        held = {name: value for name, value in model["values"].items() if name not in model["inputs"]}
        self.module = convert(model["symbol"], held, model["states"])

    def forward(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.module(**inputs)
        return outputs.sum(), outputs.detach()


def built(plain: Step, inputs: dict[str, torch.Tensor], by: str, how: Any, **more: Any) -> Setting:
    """A setting on a copy of the model, compiled in one graph, with its peak; ``how`` is None in eager mode."""
    own = copy.deepcopy(plain)
    function = own if how is None else torch.compile(own, backend=how, fullgraph=True)
    outputs: list[torch.Tensor] = []  # alive until the next step begins

    def step() -> None:
        own.zero_grad(set_to_none=True)
        outputs.clear()
        loss, output = function(inputs)
        outputs.append(output)
        loss.backward()

    begin = time.perf_counter()
    step()
    row = {"by": by, **more, "compile_seconds": time.perf_counter() - begin}
    outputs.clear()
    row["peak_bytes"] = peak_bytes(own, step, "cpu")
    if isinstance(how, Backend):
        (plan,) = how.plans
        row.update(predicted_bytes=plan.peak_bytes, stock_bytes=plan.stock_bytes, overhead=plan.overhead)
    print(f"  {by:8} {row['peak_bytes'] / 1e6:8.2f} MB, compiled in {row['compile_seconds']:.0f} s", flush=True)
    return Setting(by, step, row)


def settings(plain: Step, inputs: dict[str, torch.Tensor], budget: int) -> Iterator[Setting]:
    """Eager mode, and echo at a budget, or at the least that it reaches."""
    yield built(plain, inputs, "eager", None)
    try:
        yield built(plain, inputs, "echo", backend(budget, strict=True), budget_bytes=budget)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not isinstance(least := error.inner_exception, BudgetError):
            raise
        near = int(NEAR_LEAST * least.reachable)
        yield built(plain, inputs, "echo", backend(near, strict=True), budget_bytes=near)


def measure(name: str, threads: int) -> list[dict[str, Any]]:
    """The rows of a model: MXNet's executors, then torch's settings."""
    torch._dynamo.reset()
    print(f"{name}, {threads} threads", flush=True)
    mxnet = Mxnet(name, threads)
    model, memory = mxnet.model, mxnet.model["memory"]
    plain, inputs = Step(model), {each: torch.from_numpy(model["values"][each]) for each in model["inputs"]}
    needed = {by: sum(figures.values()) for by, figures in memory.items()}
    found = list(settings(plain, inputs, needed["echo"]))
    times: dict[str, list[float]] = {by: [] for by in memory}
    for by in memory:
        mxnet.seconds(by)  # the first step allocates, as the first of a setting compiles
    for _ in range(ROUNDS):
        for by, own in times.items():
            own.append(mxnet.seconds(by))
        for setting in found:
            start = time.perf_counter()
            setting.step()
            setting.times.append(time.perf_counter() - start)
    mxnet.close()
    rows = [{"by": f"mxnet, {by}", **memory[by], "peak_bytes": needed[by], "step_seconds": statistics.median(own)}
            for by, own in times.items()]  # fmt: skip
    rows += [{**setting.row, "step_seconds": statistics.median(setting.times)} for setting in found]
    for row in rows:
        print(f"  {row['by']:12} {row['peak_bytes'] / 1e6:8.2f} MB {1e3 * row['step_seconds']:8.1f} ms", flush=True)
    return [{"model": name, "threads": threads, **row} for row in rows]


def main() -> None:
    """Measures the models that the command line names, and keeps other rows."""
    options = parser(__doc__, *MODELS)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    names = asked(given.names, MODELS)
    if not PYTHON.exists():
        sys.exit(f"error: {PYTHON} is not there: make .venv/.installed-native")
    torch.set_num_threads(given.threads)
    for name in names:
        rows = [row for row in known_rows("torch_converted") if (row["model"], row["threads"]) != (name, given.threads)]
        path = save("torch_converted", rows + measure(name, given.threads), ("torch",))
    print("written:", path)


if __name__ == "__main__":
    main()
