"""Memory usage for other programs: Chrome's trace, torch's memory viewer, Netron."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections import Counter, defaultdict
from typing import Any, Iterator, Mapping

from echo.errors import GraphError
from echo.plans.decisions import Decision
from echo.plans.plan import Plan
from echo.report.profile import Profile
from echo.report.usage import ALWAYS, Tensor, Usage
from echo.system.files import write_in_one_step
from echo.system.terminal import MB

# A profile as a trace for https://ui.perfetto.dev and chrome://tracing: operators in their order, bytes as counters.
#
# The format is Chrome's "Trace Event Format" as JSON. Nothing is timed: a step of the graph is a microsecond wide.

_STEP = 1  # microseconds that an operator is wide
_FORWARD, _BACKWARD = 1, 2  # the rows of the operators
_MOST_LARGEST = 5


def save_trace(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes the trace as JSON; each graph of the profile is a process of it."""
    text = json.dumps(trace(profile), separators=(",", ":"), allow_nan=False)
    write_in_one_step(path, f"{text}\n")


def trace(profile: Profile) -> dict[str, Any]:
    """The trace as a JSON value."""
    events: list[Mapping[str, Any]] = []
    for number, (name, usage) in enumerate(profile.usages.items(), 1):
        events += _names(number, name)
        events += _operators(number, usage)
        events += _counters(number, usage)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": dict(profile.versions)}


def _names(process: int, name: str) -> Iterator[Mapping[str, Any]]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"{name} graph"}}
    for row, text in ((_FORWARD, "forward"), (_BACKWARD, "backward")):
        yield {"ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": {"name": text}}


def _operators(process: int, usage: Usage) -> Iterator[Mapping[str, Any]]:
    written: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in usage.passing:
        written[tensor.first].append(tensor)
    for step, name in enumerate(usage.steps):
        arrays = sorted(written[step], key=lambda tensor: -tensor.bytes)[:_MOST_LARGEST]
        row = _FORWARD if step < usage.forward_steps else _BACKWARD
        held = {array.name: f"{array.kind}, {array.bytes} bytes, until step {array.last}" for array in arrays}
        yield {"ph": "X", "pid": process, "tid": row, "ts": step * _STEP, "dur": _STEP, "name": name, "args": held}


def _counters(process: int, usage: Usage) -> Iterator[Mapping[str, Any]]:
    """MB alive by kind, at each step at which they change."""
    changes: dict[int, Counter[str]] = defaultdict(Counter)
    for tensor in usage.passing:
        changes[tensor.first][tensor.kind] += tensor.bytes
        changes[tensor.last + 1][tensor.kind] -= tensor.bytes
    kinds = dict.fromkeys(sorted({tensor.kind for tensor in usage.passing}), 0)
    for step in sorted(changes):
        for kind, size in changes[step].items():
            kinds[kind] += size
        megabytes = {kind: round(size / MB, 3) for kind, size in kinds.items()}
        yield {"ph": "C", "pid": process, "ts": step * _STEP, "name": "MB alive, planned by MXNet", "args": megabytes}


# A profile as a memory snapshot of PyTorch's, which https://docs.pytorch.org/memory_viz draws.
#
# The format is that of ``torch.cuda.memory._dump_snapshot``: a pickle of plain lists, dictionaries, texts and
# numbers. A graph is a device. Addresses are made up, and so are times: a step of the graph is a microsecond. Where a
# frame of Python's stack would stand, the layer, the operator and the kind of memory do.

_PROTOCOL = 4  # which Python 3.8 reads
_ALIGNED = 512  # bytes, as PyTorch's allocator rounds


def save_torch_snapshot(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes the snapshot; the page asks for the "Active Memory Timeline" of a device, one a graph of the profile."""
    write_in_one_step(path, pickle.dumps(snapshot(profile), _PROTOCOL))


def snapshot(profile: Profile) -> dict[str, Any]:
    """The snapshot as plain values."""
    usages = list(profile.usages.values())
    return {
        "segments": [_segment(device, usage) for device, usage in enumerate(usages)],
        "device_traces": [_events(usage) for usage in usages],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _size(tensor: Tensor) -> int:
    return -(-max(tensor.bytes, 1) // _ALIGNED) * _ALIGNED


def _addresses(usage: Usage) -> list[int]:
    """Returns an address for each array, such that no two arrays overlap."""
    addresses, address = [], _ALIGNED
    for tensor in usage.tensors:
        addresses.append(address)
        address += _size(tensor)
    return addresses


def _frames(tensor: Tensor) -> list[dict[str, Any]]:
    texts = (tensor.name, tensor.op or "given to the executor", f"layer {tensor.layer}", tensor.kind)
    return [{"filename": "", "line": 0, "name": text} for text in texts]


def _events(usage: Usage) -> list[dict[str, Any]]:
    """Returns PyTorch's events of allocation and release, ordered; an array is freed after its last step."""
    events: list[tuple[int, int, dict[str, Any]]] = []
    for tensor, address in zip(usage.tensors, _addresses(usage)):
        common = {"addr": address, "size": tensor.bytes, "stream": 0, "frames": _frames(tensor)}
        start = tensor.first + 1  # arrays that are always there come first
        events.append((start, 1, {"action": "alloc", **common, "time_us": start}))
        if tensor.first != ALWAYS:
            end = tensor.last + 2
            events.append((end, 0, {"action": "free_requested", **common, "time_us": end}))
            events.append((end, 0, {"action": "free_completed", **common, "time_us": end}))
    return [event for _, _, event in sorted(events, key=lambda item: item[:2])]


def _segment(device: int, usage: Usage) -> dict[str, Any]:
    """Returns the memory segment after the last step: only the arrays that the executor is given are left."""
    blocks: list[dict[str, Any]] = [
        {"address": address, "size": _size(tensor), "requested_size": tensor.bytes, "state": "active_allocated",
         "frames": _frames(tensor)}
        for tensor, address in zip(usage.tensors, _addresses(usage)) if tensor.first == ALWAYS
    ]  # fmt: skip
    total = sum(block["size"] for block in blocks)
    return {
        "device": device,
        "address": _ALIGNED,
        "total_size": total,
        "allocated_size": total,
        "active_size": total,
        "requested_size": sum(block["requested_size"] for block in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


# A plan written into the JSON of a symbol, for https://netron.app and other viewers: attributes on its nodes.
#
# The copy is for looking at. It is no symbol to train with: MXNet would take the attributes for parameters of
# operators.

DECISION, BYTES, REASON, FUSED, MISSED = "echo", "echo_bytes", "echo_reason", "echo_fused", "echo_not_fused"
NOTHING = "nothing"  # instead of a decision


def annotated(symbol: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Returns the JSON value of a symbol, whose operators have the plan's decisions on their feature maps.

    Args:
        symbol: what ``symbol.tojson()`` gives, read.
        plan: a plan for it. Decisions on fused operators stand at the nodes whose names these have.

    Raises:
        GraphError: it is no symbol.
    """
    try:
        result: dict[str, Any] = copy.deepcopy(dict(symbol))
        nodes = [node for node in result["nodes"] if node["op"] != "null"]
        decisions: dict[str, list[Decision]] = defaultdict(list)
        for decision in plan.decisions:
            decisions[decision.name].append(decision)
        for node in nodes:
            added = _attributes(node["op"], decisions[node["name"]]) or _nothing(plan)
            node["attrs"] = {**node.get("attrs", {}), **added}
        _patterns(result["nodes"], plan)
        return result
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise GraphError(f"expected the JSON of a symbol, got {type(error).__name__}: {error}") from error


def _attributes(op: str, decisions: list[Decision]) -> dict[str, str]:
    if not decisions:
        return {}
    fused = [decision.op for decision in decisions if decision.op != op]
    attributes = {
        DECISION: ", ".join(dict.fromkeys(decision.action for decision in decisions)),
        BYTES: str(sum(decision.bytes for decision in decisions)),
        REASON: "; ".join(dict.fromkeys(decision.reason for decision in decisions)),
    }
    return {**attributes, **({FUSED: ", ".join(dict.fromkeys(fused))} if fused else {})}


def _nothing(plan: Plan) -> dict[str, str]:
    """The attributes of an operator on which nothing is decided."""
    inside = ", or it is part of what a fused operator takes the place of" if plan.fused else ""
    return {DECISION: NOTHING, REASON: f"no gradient reads its output{inside}"}


def _patterns(nodes: list[dict[str, Any]], plan: Plan) -> None:
    for pattern, number in plan.fused:
        if ":" not in pattern:  # otherwise a layout of products, whose node is one of another graph
            nodes[number]["attrs"] = {**nodes[number].get("attrs", {}), FUSED: pattern}
    for missed in plan.missed:
        node = nodes[missed.node]
        node["attrs"] = {**node.get("attrs", {}), MISSED: f"{missed.pattern}: {missed.reason}"}
