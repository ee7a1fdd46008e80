"""The memory of traced values: the bytes of storages, which node a view looks at, and where a value lies in a plan."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Mapping

import torch
from torch import fx

from echo.errors import UnsupportedError
from echo.ir.graph import Entry
from echo.torch import safety

_GPU_BLOCK = 512  # bytes, of which torch's CUDA allocator hands out multiples


def hint(size: Any) -> int:
    """A size, that of the first batch where torch traces a symbol; an `UnsupportedError` where it depends on values."""
    known = size if isinstance(size, int) else size.node.hint
    if known is None:
        raise UnsupportedError(f"the size {size} depends on values of arrays, expected one that torch knows before")
    return int(known)


def nbytes(value: Any) -> int:
    """The bytes of the storage of a (fake) tensor, as torch's allocator of its device counts them; 0 for others."""
    if not isinstance(value, torch.Tensor):
        return 0
    return allocated(hint(value.untyped_storage().nbytes()), value.device)


def allocated(size: int, device: torch.device) -> int:
    """The bytes that torch's allocator of a device hands out for these."""
    return size if device.type == "cpu" else -(-size // _GPU_BLOCK) * _GPU_BLOCK


def storage_key(value: Any) -> int | None:
    """What is equal for tensors that share a storage; None for what is no tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return int(value.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError) as error:
        raise UnsupportedError(f"a tensor of layout {value.layout} has no storage: {error}") from error


def storage_bytes(node: fx.Node) -> dict[int | None, int]:
    """The bytes of each storage in which a node's outputs lie."""
    tensors = (value for value in safety.values_of(node) if isinstance(value, torch.Tensor))
    return {storage_key(value): nbytes(value) for value in tensors}


def aliased(node: fx.Node) -> fx.Node | None:
    """The input in whose memory all of a node's outputs lie; None where it makes memory of its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return node.all_input_nodes[0]
    keys = {storage_key(value) for value in safety.values_of(node)} - {None}
    if len(keys) != 1:
        return None
    (key,) = keys
    for read in node.all_input_nodes:
        if any(storage_key(value) == key for value in safety.values_of(read)):
            return read
    return None


@dataclass(frozen=True)
class Storages:
    """Finds the entries of a training graph in which values lie."""

    aliases: Mapping[fx.Node, fx.Node]
    number_of: Mapping[fx.Node, int]
    masks: Mapping[fx.Node, int]

    def entry(self, node: fx.Node) -> Entry | None:
        """The entry in which a value lies; None for what takes no memory, such as a number."""
        output = 0
        while node not in self.number_of:
            if node not in self.aliases:
                return None
            base = self.aliases[node]
            if node.target is operator.getitem and base in self.masks:
                return Entry(self.masks[base] if node.args[1] == 1 else self.number_of[base])
            if node.target is operator.getitem and base in self.number_of:
                output = self._first_in_storage(base, node.args[1])
            node = base
        return Entry(self.number_of[node], output)

    @staticmethod
    def _first_in_storage(node: fx.Node, index: Any) -> int:
        """The first output of a node that lies in the memory of this one."""
        keys = [storage_key(value) for value in safety.values_of(node)]
        return int(index) if keys[index] is None else keys.index(keys[index])
