"""Measured peaks and steps of torch models under Inductor: eager, torch.compile, its own budgets, and echo.

    python -m benchmarks.torch_measured [--device cuda] [MODEL ...]

Needs torch, not MXNet. Echo is given the peaks that torch's budgets were measured at, so that both compute within the
same memory, and once more a lower budget where its own peak is measured higher. Models made of layers are also compiled
with a ``torch.utils.checkpoint`` around each. A peak is that of torch's allocator, over what a step allocates: on a GPU
by its own counter, on a CPU by its profiler. Steps of all settings are measured in turns, on one thread; the result is
a median. Writes results/torch_measured.json after each model: most of the time, up to ten minutes a model, goes into
C++ compilers.
"""

from __future__ import annotations

import copy
import functools
import gc
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Sequence

import torch
import torch._dynamo
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.record import asked, known_rows, parser, save
from benchmarks.torch_models import MODELS
from benchmarks.torch_tables import SAME
from echo.errors import BudgetError
from echo.torch import Backend, backend, compat, compilers
from tests.support.torch_models import activation_budget

RATIOS = (0.5, 0.2, 0.0)  # torch's budgets; 1.0 is torch.compile as it comes
DEFAULT = ("unet", "gpt", "bert", "vit", "llama", "mixer", "resnet18", "resnet50", "translation")
ROUNDS, SECONDS = 9, 25.0  # steps of each setting, and after how many seconds fewer will do

Backward = Callable[[], None]


@dataclass
class Setting:
    """A way to train a model: its step, and what is known of it."""

    by: str
    step: Backward
    row: dict[str, Any]
    times: list[float] = field(default_factory=list)


def trainer(model: nn.Module, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Backward:
    """A step of training: forward and backward pass, with new gradients."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        result = function(*inputs)
        (result[0] if isinstance(result, tuple) else result).backward()

    return step


def peak_bytes(model: nn.Module, step: Backward, device: str) -> int:
    """The most bytes that a step allocates, over what is there before it."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    if device == "cpu":
        return compat.allocated(step)[0]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def compiled_by_torch(ratio: float) -> Callable[..., Any]:
    """A backend of Inductor's with torch's own partitioner at a budget."""
    plain = compilers.inductor_with(compat.min_cut_partition, f"torch {ratio}", planned=False)

    def compiled(module: Any, inputs: Any) -> Any:
        with activation_budget(ratio):
            return plain(module, inputs)

    return compiled


def built(model: nn.Module, inputs: Sequence[torch.Tensor], device: str, by: str, how: Any, **more: Any) -> Setting:
    """A setting on a copy of the model, compiled, with its peak; ``how`` is a backend, None for eager mode."""
    own = copy.deepcopy(model)
    if by == "checkpoint":
        checkpoint_layers(own)
    begin = time.perf_counter()
    step = trainer(own, own if how is None else torch.compile(own, backend=how), inputs)
    step()
    row = {"by": by, **more, "compile_seconds": time.perf_counter() - begin}
    step()
    row["peak_bytes"] = peak_bytes(own, step, device)
    if isinstance(how, Backend):
        (plan,) = how.plans
        row.update(predicted_bytes=plan.peak_bytes, stock_bytes=plan.stock_bytes, overhead=plan.overhead)
    predicted = f", {row['predicted_bytes'] / 1e6:.2f} predicted" if "predicted_bytes" in row else ""
    print(
        f"  {by:8} {row['peak_bytes'] / 1e6:8.2f} MB{predicted}, compiled in {row['compile_seconds']:.0f} s", flush=True
    )
    return Setting(by, step, row)


def checkpoint_layers(model: nn.Module) -> None:
    """Puts a checkpoint around each layer or block of a model."""
    for layer in layers_of(model):
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers or blocks that a model runs one after another; none where it has no list of these."""
    found = getattr(model, "layers", getattr(model, "blocks", []))
    return [layer for layer in found if type(layer).forward is not nn.Module.forward]


def settings(model: nn.Module, inputs: Sequence[torch.Tensor], device: str) -> Iterator[Setting]:
    """Eager mode, torch.compile, checkpoints, torch's budgets, and echo at each of the peaks of these budgets."""
    yield built(model, inputs, device, "eager", None)
    if layers_of(model):
        yield built(model, inputs, device, "checkpoint", "inductor")
    peaks: list[int] = []
    for ratio in (1.0, *RATIOS):
        try:
            setting = built(model, inputs, device, "torch", compiled_by_torch(ratio), ratio=ratio)
        except Exception as error:  # torch's solvers fail for some graphs and budgets
            print(f"  torch {ratio}: {type(error).__name__}: {str(error)[:90]}", flush=True)
            continue
        peaks.append(setting.row["peak_bytes"])
        yield setting
    for budget in sorted(set(peaks), reverse=True):
        try:
            setting = built(model, inputs, device, "echo", backend(budget, strict=True), budget_bytes=budget)
            yield setting
            if setting.row["peak_bytes"] > SAME * budget:  # Inductor needs more than predicted: once more, with less
                less = int(budget * budget / setting.row["peak_bytes"])
                yield built(model, inputs, device, "echo", backend(less, strict=True), budget_bytes=less)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not isinstance(least := error.inner_exception, BudgetError):
                raise
            print(f"  echo, {budget / 1e6:.2f} MB: least {least.reachable / 1e6:.2f} MB", flush=True)


def measure(name: str, device: str) -> list[dict[str, Any]]:
    """The rows of a model."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    model, inputs = model.to(device), tuple(one.to(device) for one in inputs)
    print(name, flush=True)
    found = list(settings(model, inputs, device))
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        if turn > 2 and time.perf_counter() - begin > SECONDS:
            break
        for setting in found:
            _synchronize(device)
            start = time.perf_counter()
            setting.step()
            _synchronize(device)
            setting.times.append(time.perf_counter() - start)
    for setting in found:
        setting.row.update(step_seconds=statistics.median(setting.times), steps=len(setting.times))
        print(f"  {setting.by:8} {setting.row['peak_bytes'] / 1e6:8.2f} MB {1e3 * setting.row['step_seconds']:8.1f} ms")
    return [{"model": name, "device": device, **setting.row} for setting in found]


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    """Measures the models that the command line names, and keeps the rows of others."""
    options = parser(__doc__, *MODELS)
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = options.parse_args()
    names = asked(given.names or DEFAULT, MODELS)
    torch.set_num_threads(1)
    torch._dynamo.config.cache_size_limit = 64  # of compiled functions for one forward method
    rows = [row for row in known_rows("torch_measured") if (row["model"], row["device"]) not in
            [(name, given.device) for name in names]]  # fmt: skip
    for name in names:
        rows += measure(name, given.device)
        path = save("torch_measured", rows, ("torch",))
    print("written:", path)


if __name__ == "__main__":
    main()
