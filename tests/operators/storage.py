"""Storage that MXNet has planned, changed before it is used: what works in place, and what shares memory.

MXNet's memory pass is wrapped once more, from here. (The layout of its structures is that of
``echo/native/hook/layout.h``.)
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Set, Tuple

import mxnet.libinfo

from tests.operators.graph import UNDER

_Invoker = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_NODE_BYTES, _ENTRY_BYTES = 56, 12


def _word(address: int) -> int:
    return int(ctypes.c_uint64.from_address(address).value)


def _text(address: int) -> bytes:
    return bytes(ctypes.string_at(_word(address)))


def _pass(library: Any, name: bytes) -> int:
    get = library["_ZN4dmlc8RegistryIN4nnvm15PassFunctionRegEE3GetEv"]
    get.restype = ctypes.c_void_p
    registry = get()
    for place in range(_word(registry), _word(registry + 8), 8):
        if _text(_word(place)) == name:
            return _word(place)
    raise LookupError(name)


def _attribute(graph: int, name: bytes) -> int:
    element = _word(graph + 40)
    while element:
        if _text(element + 8) == name:
            return _word(element + 16) + 8  # the value inside a dmlc::any that a shared_ptr owns
        element = _word(element)
    raise LookupError(name)


def _integers(graph: int, name: bytes) -> Any:
    vector = _attribute(graph, name)
    begin, end = _word(vector), _word(vector + 8)
    return (ctypes.c_int32 * ((end - begin) // 4)).from_address(begin)


@dataclass
class Entry:
    """An array of a planned graph, and the words of MXNet's plan that say where it is."""

    node: str
    output: int
    place: int
    read: int  # the place of the array that it is computed in, -1 where it is computed in none
    position: int  # of that among the inputs


class Plan:
    """The storage of a graph as MXNet planned it."""

    def __init__(self, graph: int, library: Any) -> None:
        get = library["_ZNK4nnvm5Graph13indexed_graphEv"]
        get.restype = ctypes.c_void_p
        self.indexed = get(ctypes.c_void_p(graph))
        self.chunk, self.computed_in = _integers(graph, b"storage_id"), _integers(graph, b"storage_inplace_index")

    def __iter__(self) -> Iterator[Entry]:
        """The arrays that MXNet gave a chunk, in the order in which they are computed."""
        first, last = _word(self.indexed), _word(self.indexed + 8)
        count = (last - first) // _NODE_BYTES
        offsets = (ctypes.c_uint64 * (count + 1)).from_address(_word(self.indexed + 168))
        for number in range(count):
            node = first + number * _NODE_BYTES
            name = _text(_word(node) + 8).decode()
            for place in range(offsets[number], offsets[number + 1]):
                position, read = self.computed_in[place], -1
                if position >= 0:
                    input_ = (ctypes.c_uint32 * 2).from_address(_word(node + 8) + position * _ENTRY_BYTES)
                    read = offsets[input_[0]] + input_[1]
                if self.chunk[place] >= 0:
                    yield Entry(name, place - offsets[number], place, read, position)

    def apart(self, entry: Entry, chunk: int) -> None:
        """Computes an array in a chunk of its own."""
        self.chunk[entry.place] = chunk
        if entry.position >= 0:  # or nothing reads it, and it is not computed
            self.computed_in[entry.place] = -1


Change = Callable[[Plan], None]
InPlace = Set[Tuple[str, int, int]]  # nodes that work in place: name, output, position of the input


def unshared(found: InPlace, cut: bool = False) -> Change:
    """Nothing shares memory but what is computed in place; ``cut``: nor what the operator under test and its gradient
    compute. Adds what those compute in place to ``found``."""

    def change(plan: Plan) -> None:
        chunks: dict[int, int] = {}
        for entry in plan:
            if entry.read >= 0 and entry.node.startswith(UNDER):
                found.add((entry.node, entry.output, entry.position))
                entry.read = -1 if cut else entry.read
            chunks[entry.place] = chunks[entry.read] if entry.read in chunks else len(chunks)
            if entry.read < 0:
                plan.apart(entry, chunks[entry.place])
            else:
                plan.chunk[entry.place] = chunks[entry.place]

    return change


def watched(found: InPlace) -> Change:
    """Changes nothing, and adds what is computed in place to ``found``."""

    def change(plan: Plan) -> None:
        found.update((entry.node, entry.output, entry.position) for entry in plan if entry.read >= 0)

    return change


def in_place_as(stock: InPlace) -> Change:
    """An output that stock MXNet does not compute in place gets a chunk of its own; clones are as their originals."""

    def change(plan: Plan) -> None:
        entries = list(plan)
        free = max((plan.chunk[entry.place] for entry in entries), default=0) + 1
        moved: dict[int, int] = {}
        for entry in entries:
            if entry.read < 0:
                continue
            name = entry.node[: -len("_echo")] if entry.node.endswith("_echo") else entry.node
            if (name, entry.output, entry.position) not in stock:
                moved[entry.place] = free
                plan.apart(entry, free)
                free += 1
            elif entry.read in moved:
                moved[entry.place] = plan.chunk[entry.place] = moved[entry.read]

    return change


@contextlib.contextmanager
def planned(change: Change) -> Iterator[None]:
    """The storage of what is bound meanwhile is changed like this."""
    library = ctypes.CDLL(mxnet.libinfo.find_lib_path()[0])
    invoker = _pass(library, b"MXPlanMemory") + 64
    before = _word(invoker)
    original = _Invoker(before)

    def run(result: int, functor: int, graph: int) -> int:
        original(result, functor, graph)
        change(Plan(result, library))
        return result

    wrapped = _Invoker(run)
    ctypes.c_uint64.from_address(invoker).value = ctypes.cast(wrapped, ctypes.c_void_p).value or 0
    try:
        yield
    finally:
        ctypes.c_uint64.from_address(invoker).value = before
