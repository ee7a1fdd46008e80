"""The chunks of memory that are dead after each node, by MXNet's memory plan; `fuzz.poison` overwrites them."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from mxnet.base import _LIB, check_call

from fuzz import poison_library

_FLOATS = (0, 1, 2, 12)  # MXNet's flags of types that know NaN: all bits set is one
_NAN, _LARGE = 0xFF, 0x7F


@dataclass
class Tally:
    """``filled`` counts the chunks overwritten so far; ``faults`` describes what memory plans and runs disagree on."""

    filled: int = 0
    faults: list[str] = field(default_factory=list)


TALLY = Tally()  # of the process


class Plan:
    """A memory plan: where each output of each node lies, and which chunks are dead after which node."""

    def __init__(self, value: dict[str, Any], adds_in_place: bool, listed: bool) -> None:
        self.first: int = value["first"]
        self.nodes: list[Any] = value["nodes"]
        self.storage: list[int] = value["storage"]
        self.dtypes: list[int] = value["dtypes"]
        TALLY.faults.extend(f"{name!r} reads an output that is not there" for name in value["missing"])
        if adds_in_place:
            for term, total in value["sums"]:
                self.storage[term] = self.storage[total]
        self.labels: dict[str, list[tuple[int, int]]] = {}
        span = range(self.first, value["end"])
        for number in span:
            if self.nodes[number] is not None:
                for output, label in enumerate(_labels(self.nodes[number], listed)):
                    self.labels.setdefault(label, []).append((number, output))
        self.dead = self._dead(value, span)

    def _dead(self, value: dict[str, Any], span: range) -> dict[int, tuple[int, ...]]:
        storage, operators = self.storage, [(n, self.nodes[n]) for n in span if self.nodes[n] is not None]
        reads, handed = [0] * len(storage), [0] * len(storage)
        for _, (_, _, inputs, _, _) in operators:
            for entry in inputs:
                reads[entry if entry >= 0 else -1 - entry] += entry >= 0
                handed[entry if entry >= 0 else -1 - entry] += 1
        for entry in value["outputs"]:
            reads[entry] += 1
        for entry, count in enumerate(value["counts"]):
            reads[entry] += count > handed[entry]  # a CachedOp's backward pass will read it
        alive: dict[int, int] = {}
        dead = {}
        for number, (_, begin, inputs, _, end) in operators:
            touched = {storage[entry] for entry in range(begin, end)}
            for entry in range(begin, end):
                alive[storage[entry]] = alive.get(storage[entry], 0) + reads[entry]
            for entry in inputs:
                if entry >= 0 and storage[entry] in alive:
                    alive[storage[entry]] -= 1
                    touched.add(storage[entry])
            dead_chunks = tuple(chunk for chunk in touched if chunk >= 0 and not alive[chunk])
            if dead_chunks:
                dead[number] = dead_chunks
        return dead


def _labels(node: Any, listed: bool) -> list[str]:
    """The names that a monitor of a CachedOp (``listed``) or of an executor gives to the outputs of a node."""
    name, begin, _, names, end = node[:5]
    if not names:
        count = end - begin
        names = [str(n) for n in range(count)] if listed else _plain(count)
    return [f"{name}_{output}" if name or listed else output for output in names]


def _plain(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output{n}" for n in range(count)]


class Pass:
    """Follows one executor, or one CachedOp in one direction, through the nodes of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.position = (-1, 0)
        self.arrays: dict[int, tuple[int, int]] = {}  # by chunk: a handle of an array in it, and a byte

    def begins_again(self, label: str) -> bool | None:
        """Whether the node of this output comes before the latest; None where the plan does not have it."""
        places = self.plan.labels.get(label)
        if places is None:
            return None
        return places[-1] <= self.position

    def see(self, label: str, array: int) -> None:
        """Takes an output that was just handed to the engine, and overwrites chunks that nothing reads any more."""
        plan, places = self.plan, self.plan.labels[label]
        index = bisect_left(places, (self.position[0], self.position[1] + 1))
        place = number, output = places[index % len(places)]
        entry = plan.nodes[number][1] + output
        chunk = plan.storage[entry]
        dead = plan.dead.get(number, ())
        is_next = number != self.position[0]
        self.position = place
        if chunk < 0:
            check_call(_LIB.MXNDArrayFree(ctypes.c_void_p(array)))
        else:
            self._drop(chunk)
            self.arrays[chunk] = array, _NAN if plan.dtypes[entry] in _FLOATS else _LARGE
        for dead_chunk in dead if is_next else {chunk}.intersection(dead):
            self.overwrite(dead_chunk)

    def overwrite(self, chunk: int) -> None:
        """Overwrites a chunk, once its array is known."""
        if chunk in self.arrays:
            poison_library.overwrite(*self.arrays.pop(chunk))
            TALLY.filled += 1

    def overwrite_all(self) -> None:
        """Overwrites every chunk: between two steps nothing reads any."""
        for chunk in list(self.arrays):
            self.overwrite(chunk)

    def _drop(self, chunk: int) -> None:
        if chunk in self.arrays:
            check_call(_LIB.MXNDArrayFree(ctypes.c_void_p(self.arrays.pop(chunk)[0])))

    def forget(self) -> None:
        """Frees the arrays as they are."""
        for chunk in list(self.arrays):
            self._drop(chunk)


def lost(array: int, label: str) -> None:
    """Notes an output that no memory plan has, and frees its array."""
    TALLY.faults.append(f"{label!r} is in no memory plan that is known")
    check_call(_LIB.MXNDArrayFree(ctypes.c_void_p(array)))
