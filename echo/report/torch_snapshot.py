"""A profile as a memory snapshot of PyTorch's, which https://docs.pytorch.org/memory_viz draws.

The format is that of ``torch.cuda.memory._dump_snapshot``: a pickle of plain lists, dictionaries, texts and numbers. A
graph is a device. Addresses are made up, and so are times: a step of the graph is a microsecond. Where a frame of
Python's stack would stand, the layer, the operator and the kind of memory do.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from echo.report.profile import Profile
from echo.report.usage import ALWAYS, Tensor, Usage

_PROTOCOL = 4  # which Python 3.8 reads
_ALIGNED = 512  # bytes, as PyTorch's allocator rounds


def save(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes the snapshot; the page asks for the "Active Memory Timeline" of a device, one a graph of the profile."""
    Path(path).write_bytes(pickle.dumps(snapshot(profile), _PROTOCOL))


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
        start = tensor.first + 1  # what is always there comes first
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
