"""Seconds of the nodes of a torch graph on the user's device: what a second run of each would take.

Products, convolutions and attention are run and timed, each signature once on a device: seconds are kept on disk
(`echo.estimators.cost_table`). Other operators count by the bytes that they move, at the bandwidth that a copy reaches
on the device, plus the time of a call.

With ``fused``, as under Inductor, a chain of pointwise operators is one kernel: only what it reads from outside and
what others read of it moves through memory, so that an intermediate value costs nothing and its readers nothing for it.
Such a value is nearly free to compute again. Without it, as under ``aot_eager``, every operator reads and writes, and
pointwise operators are timed too: on a CPU an exponential takes longer than its bytes do.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import fx
from torch.utils import _pytree

from echo.estimators.cost_table import CostTable
from echo.ir.ops import is_heavy_in_torch
from echo.system.process import Deadline, processor
from echo.torch import safety
from echo.torch.capture import JointGraph, hint, nbytes, storage_bytes

# Seconds of operators, and of a byte, an operation and a call, by device; and what this process measured of them.
TABLES: dict[str, CostTable] = {}
_MEASURED: set[tuple[str, str]] = set()

_MEASURING = 6.0  # seconds for the timing of one graph; what is left then counts by its bytes
_RUNS, _LONG = 4, 0.05  # runs of one operator, of which the fastest counts; seconds after which one run will do
_STEADY = 1.5  # times the fastest run: where no other one is below, other programs ran
_COPIED = 16 << 20  # bytes of the array whose copy shows the bandwidth: more than the caches of most processors
_PRODUCT = 512  # rows and columns of the product that shows the rate of products
_HEAVY_MORE = frozenset({
    "addbmm", "baddbmm", "convolution_backward", "convolution_overrideable", "linear", "linear_backward", "scaled_mm",
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "thnn_fused_lstm_cell", "cudnn_rnn", "einsum", "int_mm",
})  # fmt: skip
_VIEWS = frozenset({
    "view", "_unsafe_view", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "t", "alias",
    "detach", "getitem",
})  # fmt: skip
# Pointwise operators without torch's tag, among them those that Inductor computes where they are read.
_POINTWISE = frozenset({
    "_to_copy", "clone", "convert_element_type", "full", "full_like", "gelu_backward", "iota", "inductor_lookup_seed",
    "inductor_random", "native_dropout_backward", "ones_like", "scalar_tensor", "tanh_backward", "sigmoid_backward",
    "threshold_backward", "where", "zeros_like",
})  # fmt: skip


def seconds_of(joint: JointGraph, *, fused: bool) -> tuple[float, ...]:
    """The seconds of each node of the training graph; 0 for variables.

    The first call in a process runs operators on the device for some seconds; no random number is drawn.
    """
    deadline = Deadline.after(_MEASURING)
    groups = fusion_groups(joint) if fused else {}
    with torch.no_grad():
        seconds = tuple(
            0.0 if joint.masks.get(node) == number else _seconds(node, joint, groups, fused, deadline)
            for number, node in enumerate(joint.order)
        )
    for table in TABLES.values():
        table.save()
    return seconds


def is_heavy(node: fx.Node) -> bool:
    """Whether the time of an operator grows faster than its bytes."""
    name = safety.operator_name(node)
    return is_heavy_in_torch(name) or name.strip("_") in _HEAVY_MORE or "scaled_dot_product" in name


def is_pointwise(node: fx.Node) -> bool:
    """Whether Inductor computes each element of a node's output from elements at the same place."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    tag = getattr(torch.Tag, "pointwise", None)
    return (tag is not None and tag in target.tags) or safety.operator_name(node) in _POINTWISE


def fusion_groups(joint: JointGraph) -> dict[fx.Node, int]:
    """The fused kernel of each pointwise node: those that read each other and have as many elements share one.

    A simple model: Inductor also fuses reductions with what they read, and splits very large kernels.
    """
    group: dict[fx.Node, int] = {}
    for nodes in (joint.forward, joint.backward):
        for node in nodes:
            if node in joint.number_of and is_pointwise(node):
                near = [
                    read for read in _through_views(node, joint) if read in group and _elements(read) == _elements(node)
                ]
                group[node] = group[near[0]] if near else len(group)
    return group


def _through_views(node: fx.Node, joint: JointGraph) -> Iterator[fx.Node]:
    for read in node.all_input_nodes:
        while read in joint.aliases and read not in joint.number_of:
            read = joint.aliases[read]
        yield read


def _elements(node: fx.Node) -> int:
    value = safety.values_of(node)[0]
    return int(nbytes(value) // value.element_size()) if isinstance(value, torch.Tensor) else 0


def _seconds(node: fx.Node, joint: JointGraph, groups: Mapping[fx.Node, int], fused: bool, deadline: Deadline) -> float:
    if node.op != "call_function":
        return 0.0
    device = _device(node)
    moved = _bytes_moved(node, joint, groups)
    by_bytes = moved * _known(device, _seconds_a_byte) if moved else 0.0
    if fused and not is_heavy(node):
        return by_bytes + (0.0 if node in groups else _known(device, _seconds_a_call))
    if _may_be_timed(node):
        measured = _timed(node, device, deadline)
        if measured is not None:
            return measured
    flops = _flops(node)
    by_flops = flops * _known(device, _seconds_a_flop) if flops else 0.0
    return max(by_bytes, by_flops) + _known(device, _seconds_a_call)


def _bytes_moved(node: fx.Node, joint: JointGraph, groups: Mapping[fx.Node, int]) -> int:
    """The bytes that a node reads and writes, less what stays inside of its kernel."""
    own = groups.get(node)
    reads = {read for read in _through_views(node, joint) if own is None or groups.get(read) != own}
    read_bytes = sum(_tensor_bytes(read) for read in reads)
    if own is not None and all(groups.get(user) == own for user in _users(node)):
        return read_bytes
    return read_bytes + _tensor_bytes(node)


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """The readers of a node, and of views of it."""
    for user in node.users:
        if safety.operator_name(user) in _VIEWS:
            yield from _users(user)
        else:
            yield user


def _tensor_bytes(node: fx.Node) -> int:
    return sum(storage_bytes(node).values())


def _device(node: fx.Node) -> torch.device:
    for one in (node, *node.all_input_nodes):
        for value in safety.values_of(one):
            if isinstance(value, torch.Tensor):
                return value.device
    return torch.device("cpu")


# Timing.


def _may_be_timed(node: fx.Node) -> bool:
    """Whether a run of a node on made-up inputs changes nothing and cannot fail on their values."""
    return not safety.why_not_again(node) and not any(
        isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)
        and safety.operator_name(node).startswith(("scatter", "gather", "index"))
        for read in node.all_input_nodes for value in safety.values_of(read)
    )  # fmt: skip


def _timed(node: fx.Node, device: torch.device, deadline: Deadline) -> float | None:
    """The seconds of an operator, None where it could not be timed."""
    table, key = _table(device), _signature(node)
    if _is_to_be_measured(table, key):
        if deadline.is_over:
            return table.get(key)
        try:
            _keep(table, key, _run(_call_of(node), device))
        except Exception:  # whatever an operator raises for made-up values, or because memory is short
            return None
    return table.get(key)


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


def _call_of(node: fx.Node) -> Callable[[], Any]:
    args, kwargs = _pytree.tree_map_only(fx.Node, _made_up, (node.args, node.kwargs))
    target: Callable[..., Any] = node.target
    return lambda: target(*args, **kwargs)


def _made_up(node: fx.Node) -> Any:
    """A tensor of the same shape, strides and type; the same number for numbers."""
    return _pytree.tree_map_only(torch.Tensor, _filled, _pytree.tree_map_only(torch.SymInt, hint, node.meta["val"]))


def _filled(value: torch.Tensor) -> torch.Tensor:
    shape, strides = [hint(size) for size in value.shape], [hint(stride) for stride in value.stride()]
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if all(shape) else 0
    flat = torch.full((count,), 0.5 if value.dtype.is_floating_point else 0, dtype=value.dtype, device=value.device)
    return flat.as_strided(shape, strides)


def _signature(node: fx.Node) -> str:
    def described(read: fx.Node) -> str:
        values = safety.values_of(read)
        return str([(tuple(map(hint, value.shape)), tuple(map(hint, value.stride())), value.dtype)
                    if isinstance(value, torch.Tensor) else str(value) for value in values])  # fmt: skip

    return f"{node.target} {_pytree.tree_map_only(fx.Node, described, (node.args, node.kwargs))}"


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


# What a device does in a second.


def _known(device: torch.device, measure: Callable[[torch.device], tuple[Sequence[float], int]]) -> float:
    """The seconds of one thing that ``measure`` runs many of."""
    table, key = _table(device), measure.__name__
    if _is_to_be_measured(table, key):
        _keep(table, key, *measure(device))
    return table.get(key) or 0.0


def _seconds_a_byte(device: torch.device) -> tuple[Sequence[float], int]:
    """A copy, which reads and writes each byte of an array."""
    array = torch.zeros(_COPIED // 4, device=device)
    target = torch.zeros_like(array)
    return _run(lambda: target.copy_(array), device), 2 * _COPIED


def _seconds_a_flop(device: torch.device) -> tuple[Sequence[float], int]:
    """A product in float32."""
    one = torch.full((_PRODUCT, _PRODUCT), 0.5, device=device)
    return _run(lambda: torch.mm(one, one), device), 2 * _PRODUCT**3


def _seconds_a_call(device: torch.device) -> tuple[Sequence[float], int]:
    """An operator that does nothing."""
    one = torch.zeros(1, device=device)
    return _run(lambda: torch.neg(one), device), 1


def _flops(node: fx.Node) -> float:
    """Twice the multiplications of a product or convolution that could not be timed; 0 for others."""
    if not is_heavy(node):
        return 0.0
    shapes: Sequence[Sequence[int]] = [
        [hint(size) for size in value.shape]
        for read in node.all_input_nodes for value in safety.values_of(read)[:1] if isinstance(value, torch.Tensor)
    ]  # fmt: skip
    inner = max((shape[-1] for shape in shapes if shape), default=1)
    return 2.0 * _elements(node) * inner
