"""Runs of single operators on the user's device, on made-up inputs: their seconds, and the memory that they use inside.

Seconds are kept on disk (`echo.estimators.cost_table`), in a table for each device, version of torch and number of
threads. Nothing here draws a random number or changes a value of the user's.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

import torch
from torch import fx
from torch.utils import _pytree

from echo.errors import reraise_interruption
from echo.estimators.cost_table import CostTable
from echo.system.process import Deadline, processor
from echo.torch import compat, safety
from echo.torch.storages import hint

# Seconds of operators, and of a byte, an operation and a call, by device; and what this process measured of them.
TABLES: dict[str, CostTable] = {}
_MEASURED: set[tuple[str, str]] = set()
# Bytes that operators use inside, by device and signature.
_SCRATCH: dict[tuple[str, str], int] = {}

_RUNS, _LONG = 4, 0.05  # runs of one operator, of which the fastest counts; seconds after which one run will do
_STEADY = 1.5  # times the fastest run: where no other one is below, other programs ran
_COPIED = 16 << 20  # bytes of the array whose copy shows the bandwidth: more than the caches of most processors
_PRODUCT = 512  # rows and columns of the product that shows the rate of products


def device_of(node: fx.Node) -> torch.device:
    """The device of what a node computes, or else of what it reads."""
    for one in (node, *node.all_input_nodes):
        for value in safety.values_of(one):
            if isinstance(value, torch.Tensor):
                return value.device
    return torch.device("cpu")


def may_be_run(node: fx.Node) -> bool:
    """Whether a run of a node on made-up inputs changes nothing and cannot fail on their values."""
    return not safety.why_not_again(node) and not any(
        isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)
        and safety.operator_name(node).startswith(("scatter", "gather", "index"))
        for read in node.all_input_nodes for value in safety.values_of(read)
    )  # fmt: skip


def seconds_of_run(node: fx.Node, device: torch.device, deadline: Deadline, channels_last: bool) -> float | None:
    """The seconds of an operator, None where it could not be timed."""
    table, key = _table(device), _signature(node, channels_last)
    if _is_to_be_measured(table, key):
        if deadline.is_over:
            return table.get(key)
        try:
            _keep(table, key, _run(_call_of(node, channels_last), device))
        except Exception as error:  # whatever an operator raises for made-up values, or because memory is short
            reraise_interruption(error)
            return None
    return table.get(key)


def scratch_of_run(node: fx.Node, device: torch.device, channels_last: bool) -> int:
    """The bytes that an operator allocates and frees inside itself; 0 where that cannot be seen, as on GPUs."""
    key = _table(device).device, _signature(node, channels_last)
    if device.type == "cpu" and key not in _SCRATCH:
        try:
            most, kept = compat.allocated(_call_of(node, channels_last))
            _SCRATCH[key] = max(most - kept, 0)
        except Exception as error:  # see `seconds_of_run`
            reraise_interruption(error)
            _SCRATCH[key] = 0
    return _SCRATCH.get(key, 0)


def known_scratch(node: fx.Node, channels_last: bool) -> int:
    """The bytes that this process has seen an operator allocate inside itself; 0 where it has not run it."""
    return _SCRATCH.get((_table(device_of(node)).device, _signature(node, channels_last)), 0)


def _is_to_be_measured(table: CostTable, key: str) -> bool:
    """Whether there is no time yet, or only one that an earlier process measured while the machine was busy."""
    return key not in table or (table.is_provisional(key) and (table.device, key) not in _MEASURED)


def _keep(table: CostTable, key: str, runs: Sequence[float], count: int = 1) -> None:
    """Keeps the fastest of some runs, as the time of each of ``count`` things; provisional where none came near it."""
    first, *others = sorted(runs)
    table.add(key, max(first, 1e-9) / count, provisional=bool(others) and others[0] > _STEADY * first)
    _MEASURED.add((table.device, key))


def _table(device: torch.device) -> CostTable:
    """The times of a device, which are also those of this version of torch and this number of threads."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{processor()}, {torch.get_num_threads()} threads"
    text = f"torch {torch.__version__}, {device}, {name}"
    if text not in TABLES:
        TABLES[text] = CostTable(text)
    return TABLES[text]


def _call_of(node: fx.Node, channels_last: bool) -> Callable[[], Any]:
    args, kwargs = _pytree.tree_map_only(fx.Node, _made_up, (node.args, node.kwargs))
    if channels_last:
        args = _pytree.tree_map_only(torch.Tensor, _in_channels_last, args)
    target: Callable[..., Any] = node.target
    return lambda: target(*args, **kwargs)


def _made_up(node: fx.Node) -> Any:
    """A tensor of the same shape, strides and type; the same number for numbers."""
    return _pytree.tree_map_only(torch.Tensor, _filled, _pytree.tree_map_only(torch.SymInt, hint, node.meta["val"]))


def _in_channels_last(value: torch.Tensor) -> torch.Tensor:
    """The tensor in the other layout; some channels of a larger tensor are still that, and convolutions copy them."""
    if value.dim() != 4 or not value.numel():
        return value
    _, channels, height, width = value.shape
    whole = value.stride(0) // (height * width)
    if whole > channels and value.stride()[1:] == (height * width, width, 1):
        larger = value.new_full((len(value), whole, height, width), 0.5)
        return larger.contiguous(memory_format=torch.channels_last)[:, :channels]
    return value.contiguous(memory_format=torch.channels_last)


def _filled(value: torch.Tensor) -> torch.Tensor:
    shape, strides = [hint(size) for size in value.shape], [hint(stride) for stride in value.stride()]
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if all(shape) else 0
    flat = torch.full((count,), 0.5 if value.dtype.is_floating_point else 0, dtype=value.dtype, device=value.device)
    return flat.as_strided(shape, strides)


def _signature(node: fx.Node, channels_last: bool = False) -> str:
    def described(read: fx.Node) -> str:
        values = safety.values_of(read)
        return str([(tuple(map(hint, value.shape)), tuple(map(hint, value.stride())), value.dtype)
                    if isinstance(value, torch.Tensor) else str(value) for value in values])  # fmt: skip

    text = f"{node.target} {_pytree.tree_map_only(fx.Node, described, (node.args, node.kwargs))}"
    return f"{text}, channels last" if channels_last else text


def _run(call: Callable[[], Any], device: torch.device) -> list[float]:
    """The seconds of some runs, after one that counts for nothing; of one alone where that takes long."""
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times: list[float] = []
    for run in range(_RUNS + 1):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        took = time.perf_counter() - begin
        if run or took > _LONG:
            times.append(took)
        if took > _LONG:
            break
    return times


def rate(device: torch.device, measure: Callable[[torch.device], tuple[Sequence[float], int]]) -> float:
    """The seconds of one thing that ``measure`` runs many of."""
    table, key = _table(device), measure.__name__
    if _is_to_be_measured(table, key):
        _keep(table, key, *measure(device))
    return table.get(key) or 0.0


def seconds_a_byte(device: torch.device) -> tuple[Sequence[float], int]:
    """A copy, which reads and writes each byte of an array."""
    array = torch.zeros(_COPIED // 4, device=device)
    target = torch.zeros_like(array)
    return _run(lambda: target.copy_(array), device), 2 * _COPIED


def seconds_a_flop(device: torch.device) -> tuple[Sequence[float], int]:
    """A product in float32."""
    one = torch.full((_PRODUCT, _PRODUCT), 0.5, device=device)
    return _run(lambda: torch.mm(one, one), device), 2 * _PRODUCT**3


def seconds_a_call(device: torch.device) -> tuple[Sequence[float], int]:
    """An operator that does nothing."""
    one = torch.zeros(1, device=device)
    return _run(lambda: torch.neg(one), device), 1
