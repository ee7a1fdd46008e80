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

from typing import Mapping, Sequence

import torch
from torch import fx

from echo.ir.ops import is_heavy_in_torch
from echo.system.process import Deadline
from echo.torch import safety, timing
from echo.torch.capture import JointGraph
from echo.torch.inductor import elements, fusion_groups, is_convolution, through_views, users_through_views
from echo.torch.storages import hint, storage_bytes

_MEASURING = 6.0  # seconds for the timing of one graph; what is left then counts by its bytes
_HEAVY_MORE = frozenset({
    "addbmm", "baddbmm", "convolution_backward", "convolution_overrideable", "linear", "linear_backward", "scaled_mm",
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "thnn_fused_lstm_cell", "cudnn_rnn", "einsum", "int_mm",
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
    for table in timing.TABLES.values():
        table.save()
    return seconds


def is_heavy(node: fx.Node) -> bool:
    """Whether the time of an operator grows faster than its bytes."""
    name = safety.operator_name(node)
    return is_heavy_in_torch(name) or name.strip("_") in _HEAVY_MORE or "scaled_dot_product" in name


def _seconds(node: fx.Node, joint: JointGraph, groups: Mapping[fx.Node, int], fused: bool, deadline: Deadline) -> float:
    if node.op != "call_function":
        return 0.0
    device = timing.device_of(node)
    moved = _bytes_moved(node, joint, groups)
    by_bytes = moved * timing.rate(device, timing.seconds_a_byte) if moved else 0.0
    if fused and not is_heavy(node):
        return by_bytes + (0.0 if node in groups else timing.rate(device, timing.seconds_a_call))
    if timing.may_be_run(node):
        measured = timing.seconds_of_run(node, device, deadline, joint.channels_last and is_convolution(node))
        if measured is not None:
            return measured
    flops = _flops(node)
    by_flops = flops * timing.rate(device, timing.seconds_a_flop) if flops else 0.0
    return max(by_bytes, by_flops) + timing.rate(device, timing.seconds_a_call)


def _bytes_moved(node: fx.Node, joint: JointGraph, groups: Mapping[fx.Node, int]) -> int:
    """The bytes that a node reads and writes, less what stays inside of its kernel."""
    own = groups.get(node)
    reads = {read for read in through_views(node, joint) if own is None or groups.get(read) != own}
    read_bytes = sum(_tensor_bytes(read) for read in reads)
    if own is not None and all(groups.get(user) == own for user in users_through_views(node)):
        return read_bytes
    return read_bytes + _tensor_bytes(node)


def _tensor_bytes(node: fx.Node) -> int:
    return sum(storage_bytes(node).values())


def _flops(node: fx.Node) -> float:
    """Twice the multiplications of a product or convolution that could not be timed; 0 for others."""
    if not is_heavy(node):
        return 0.0
    shapes: Sequence[Sequence[int]] = [
        [hint(size) for size in value.shape]
        for read in node.all_input_nodes for value in safety.values_of(read)[:1] if isinstance(value, torch.Tensor)
    ]  # fmt: skip
    inner = max((shape[-1] for shape in shapes if shape), default=1)
    return 2.0 * elements(node) * inner
