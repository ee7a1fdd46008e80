"""Two processes of a job that train under `echo.torch`, for tests of what its ranks share.

``python -m tests.support.torch_ranks RANK PORT FILE SCENARIO...`` runs scenarios one after the other, and writes their
results to a file.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from echo.errors import UnsupportedError
from echo.system.threads import ONCE
from echo.torch import backend, backends
from echo.torch.ranks import Ranks
from tests.support.torch_models import GPT, Perceptron

ROOT = Path(__file__).resolve().parents[2]
WORLD = 2
LIMIT = 420  # seconds for both processes
PLANNING = 1.5


class Result(NamedTuple):
    """What a rank's step came to: loss and gradients with echo and without it, plans, and warnings."""

    found: Sequence[torch.Tensor] = ()
    expected: Sequence[torch.Tensor] = ()
    schedules: Sequence[Any] = ()
    peaks: Sequence[int] = ()
    stock: Sequence[int] = ()
    warnings: Sequence[str] = ()
    error: str = ""
    graphs: int = 0

    @property
    def is_right(self) -> bool:
        """Whether all results with echo have the bits of those without it."""
        return len(self.found) == len(self.expected) > 1 and all(map(torch.equal, self.found, self.expected))


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _inputs(rank: int, batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + rank)
    return torch.randint(0, 40, (batch, 24)), torch.randint(0, 40, (batch, 24))


def _gpt() -> nn.Module:
    torch.manual_seed(5)
    return GPT()


def _perceptron() -> nn.Module:
    torch.manual_seed(5)
    return DistributedDataParallel(Perceptron(drop=0.0))


def _rows(rank: int, count: int = 96) -> tuple[torch.Tensor]:
    torch.manual_seed(100 + rank)
    return (torch.randn(count, 32),)


def _trained(model: Any, call: Any, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The loss and gradients of a step."""
    torch.manual_seed(11)
    result = call(*inputs)
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    local = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in gradients]
    return [loss.detach().clone(), *(one.detach().clone() for one in local)]


def _compared(make: Callable[[], Any], inputs: tuple[torch.Tensor, ...], ours: backends.Backend) -> Result:
    """A step without echo, and one with it."""
    model = make()
    expected, found, error = _trained(model, model, inputs), [], ""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ONCE.forget()
    handler = _Warnings()
    logging.getLogger("echo").addHandler(handler)
    model = make()
    try:
        found = _trained(model, torch.compile(model, backend=ours), inputs)
    except Exception as raised:
        inner = getattr(raised, "inner_exception", raised)
        error = f"{type(inner).__name__}: {inner}"
    logging.getLogger("echo").removeHandler(handler)
    plans = ours.plans
    return Result(
        found, expected, [sorted(plan.schedule.items()) for plan in plans], [plan.peak_bytes for plan in plans],
        [plan.stock_bytes for plan in plans], handler.texts, error,
        torch._dynamo.utils.counters["stats"]["unique_graphs"],
    )  # fmt: skip


def _ours(budget: Any = 0.7, **options: Any) -> backends.Backend:
    return backend(budget, compiler="aot_eager", max_planning=PLANNING, **options)


def _ddp(rank: int) -> Result:
    """Different inputs on each rank."""
    return _compared(lambda: DistributedDataParallel(_gpt()), _inputs(rank), _ours())


def _buckets(rank: int) -> Result:
    """Small buckets: Dynamo makes a graph for each."""
    first, distributed._DEFAULT_FIRST_BUCKET_BYTES = distributed._DEFAULT_FIRST_BUCKET_BYTES, 1024
    try:
        ours = _ours(None, max_overhead=0.05)  # a part of the graph that has nothing to save keeps no budget
        return _compared(lambda: DistributedDataParallel(_gpt(), bucket_cap_mb=0.05), _inputs(rank), ours)
    finally:
        distributed._DEFAULT_FIRST_BUCKET_BYTES = first


def _whole(rank: int) -> Result:
    """Without Dynamo's splits at buckets."""
    with torch._dynamo.config.patch(optimize_ddp=False):
        return _compared(lambda: DistributedDataParallel(_gpt(), bucket_cap_mb=0.05), _inputs(rank), _ours())


@contextlib.contextmanager
def _seconds_by(function: Callable[[Sequence[float]], Sequence[float]]) -> Iterator[None]:
    """Has operators take other seconds than measured while this is open."""
    measured = backends.seconds_of
    backends.seconds_of = lambda *given, **options: tuple(function(measured(*given, **options)))
    try:
        yield
    finally:
        backends.seconds_of = measured


def _rising(seconds: Sequence[float]) -> Sequence[float]:
    return [1.0 + number for number, _ in enumerate(seconds)]


def _falling(seconds: Sequence[float]) -> Sequence[float]:
    return _rising(seconds)[::-1]


def _failing(_: Sequence[float]) -> Sequence[float]:
    raise UnsupportedError("no times here")


def _poisoned(rank: int) -> Result:
    """On rank 0 the last operators take the longest, on rank 1 the first."""
    with _seconds_by(_falling if rank else _rising):
        return _compared(lambda: DistributedDataParallel(_gpt()), _inputs(rank), _ours(0.8))


def _alone(rank: int) -> Result:
    """The same, and rank 1 looks for plans of other limits."""
    ours = _ours(0.8)
    ours.partitioner._ranks = Ranks(f"of rank {rank}", 0.2)
    with _seconds_by(_falling if rank else _rising):
        return _compared(lambda: DistributedDataParallel(_gpt()), _inputs(rank), ours)


def _other_graph(rank: int) -> Result:
    """Rank 1 has a larger batch."""
    ours = _ours()
    ours.partitioner._ranks.wait = 0.2
    return _compared(_perceptron, _rows(rank, 96 + 32 * rank), ours)


def _recompiled(rank: int) -> Result:
    """Rank 1 compiles what both compiled before, and rank 0 compiles nothing."""
    return _compared(_gpt, _inputs(rank), _ours()) if rank else Result()


def _failed(rank: int) -> Result:
    """Planning fails on rank 0."""
    with _seconds_by(list if rank else _failing):
        return _compared(_perceptron, _rows(rank), _ours(0.71))


def _impossible(rank: int) -> Result:
    """A budget that nothing keeps."""
    return _compared(_perceptron, _rows(rank), _ours(1024))


def _fsdp(rank: int) -> Result:
    """FSDP2: each block and the whole are shards of both ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make() -> Any:
        mesh, model = init_device_mesh("cpu", (WORLD,)), _gpt()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return _compared(make, _inputs(rank), _ours())


SCENARIOS: dict[str, Callable[[int], Result]] = {
    "ddp": _ddp, "recompiled": _recompiled, "buckets": _buckets, "whole": _whole, "poisoned": _poisoned,
    "alone": _alone, "other graph": _other_graph, "failed": _failed, "impossible": _impossible, "fsdp": _fsdp,
}  # fmt: skip


def run_ranks(folder: Path, names: list[str]) -> list[dict[str, Result]]:
    """The results of scenarios on each rank."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    files = [folder / f"rank{rank}" for rank in range(WORLD)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.torch_ranks", str(rank), str(store.port), str(file),
             *names],
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
        )
        for rank, file in enumerate(files)
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=LIMIT)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * WORLD, "\n".join(texts)
    return [torch.load(file, weights_only=False) for file in files]


def main() -> None:
    """One rank."""
    rank, port, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=120))
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    results = {}
    for name in sys.argv[4:]:
        results[name] = SCENARIOS[name](rank)
        distributed.barrier()
    torch.save(results, file)
    distributed.destroy_process_group()


if __name__ == "__main__":
    from tests.support import torch_ranks

    torch_ranks.main()  # results are values of that module, not of __main__
