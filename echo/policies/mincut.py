"""The least stashed bytes: a minimum cut between the forward pass and the feature maps that gradients read.

The stash between the passes is a cut of the forward graph: every feature map that a gradient reads is in the stash, or
is recomputed from it. The smallest cut is the smallest stash, found in polynomial time (as in functorch's partitioner,
He and Yu, 2023). It does not count the memory that recomputation needs while it runs. Seconds count as bytes at a
price, which is bisected to where the limits are kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Mapping

import numpy as np
import numpy.typing as npt

from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.policies.problem import Problem

_PRICES = 12  # bisection steps, over the range below
_RANGE = 1e4  # prices go from this part to this multiple of the step's bytes over its seconds


@dataclass(frozen=True)
class Mincut:
    """Minimum cuts at several prices of a second; the best of them keeps the limits where one of them does."""

    name: str = "mincut"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        best = problem.splits(least_stash(problem, 0.0))
        if problem.max_bytes is None and problem.max_seconds is None:
            return best
        if problem.max_bytes is None and problem.value(best).seconds <= (problem.max_seconds or 0.0):
            return best
        ranked = min([best, {}], key=lambda schedule: problem.rank(problem.value(schedule)))
        return self._bisect(problem, ranked)

    def _bisect(self, problem: Problem, best: RecomputeSchedule) -> RecomputeSchedule:
        middle = problem.value({}).bytes / max(problem.costs.step_seconds, 1e-9)
        low, high = middle / _RANGE, middle * _RANGE
        for _ in range(_PRICES):
            price = (low * high) ** 0.5
            schedule = problem.splits(least_stash(problem, price))
            value = problem.value(schedule)
            if problem.rank(value) < problem.rank(problem.value(best)):
                best = schedule
            if problem.max_bytes is not None:  # the aim is the highest price at which the cut still fits
                dear = value.bytes > problem.max_bytes
            else:  # the aim is the lowest price at which the cut is fast enough
                dear = value.seconds <= (problem.max_seconds or 0.0)
            low, high = (low, price) if dear else (price, high)
        return best


# Minimum cuts of networks with whole capacities (Dinitz, 1970).
#
# networkx has several algorithms for this; on networks of 10,000 nodes as `echo.policies.mincut` makes them, the
# fastest takes 3.3 s, and a choice within limits takes a dozen cuts. This one, over flat lists, takes a tenth of
# that.

UNLIMITED = 2**100  # more than any sum of capacities


class Network:
    """Directed edges with capacities between numbered nodes."""

    def __init__(self, nodes: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(nodes)]  # by node; edge e ^ 1 is the reverse of edge e
        self._to: list[int] = []
        self._room: list[int] = []

    def add(self, tail: int, head: int, capacity: int) -> None:
        """An edge from one node to another."""
        for begin, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[begin].append(len(self._to))
            self._to.append(end)
            self._room.append(room)

    def sink_side(self, source: int, sink: int) -> list[bool]:
        """By node: whether it lies on the sink's side of the minimum cut, or of the one nearest to the sink."""
        while True:
            distance = self._distances(source, sink)
            if distance[source] < 0:
                return [steps >= 0 for steps in distance]
            self._saturate(source, sink, distance)

    def _distances(self, source: int, sink: int) -> list[int]:
        """The length of the shortest path with room left from each node to the sink; -1 where there is none."""
        distance = [-1] * len(self._edges)
        distance[sink] = 0
        queue = deque([sink])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                tail = self._to[edge]
                if distance[tail] < 0 and self._room[edge ^ 1]:
                    distance[tail] = distance[node] + 1
                    queue.append(tail)
        return distance

    def _saturate(self, source: int, sink: int, distance: list[int]) -> None:
        """Sends as much as shortest paths take (a blocking flow)."""
        following = [0] * len(self._edges)  # by node: the first edge that may still lead on
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                node = self._send(path)
            edge = self._next_edge(node, following, distance)
            if edge >= 0:
                path.append(edge)
                node = self._to[edge]
            elif path:
                node = self._to[path.pop() ^ 1]
                following[node] += 1
            else:
                return

    def _next_edge(self, node: int, following: list[int], distance: list[int]) -> int:
        edges = self._edges[node]
        for position in range(following[node], len(edges)):
            edge = edges[position]
            if self._room[edge] and distance[self._to[edge]] == distance[node] - 1:
                following[node] = position
                return edge
        following[node] = len(edges)
        return -1

    def _send(self, path: list[int]) -> int:
        """Fills a path to the sink, and cuts it before its first full edge; returns the node where it ends then."""
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        full = next(position for position, edge in enumerate(path) if not self._room[edge])
        node = self._to[path[full] ^ 1]
        del path[full:]
        return node


# The least stash, by a minimum cut of the forward graph before the feature maps that gradients read.

_SOURCE, _SINK = 0, 1


def least_stash(problem: Problem, price: float) -> list[int]:
    """The candidates to recompute for the least stash, where a second of recomputation costs ``price`` bytes."""
    sizes = {entry: problem.training.type_of(entry).bytes for entry in _freed(problem.training)}
    on_sink_side = _sink_side(problem, price, sizes, -1)
    return [node for node in sorted(problem.candidates) if node in on_sink_side]


def stash_lower_bound(problem: Problem, after: int) -> int:
    """The bytes of the least stash from which all forward entries that nodes after ``after`` read can be computed.

    No schedule of these candidates has less in memory there. Entries that share memory with another do not count.
    """
    nodes = problem.training.nodes
    views = {Entry(number, out) for number, node in enumerate(nodes) for _, out, same in node.inplace if same}
    sizes = {entry: problem.training.type_of(entry).bytes for entry in _freed(problem.training) - views}
    on_sink_side = _sink_side(problem, 0.0, sizes, after)
    recomputable = _recomputable(problem)
    return sum(size for entry, size in sizes.items()
               if entry in on_sink_side and not (entry in recomputable and entry.node in on_sink_side))  # fmt: skip


def _freed(training: TrainingGraph) -> set[Entry]:
    """The entries that lie in the planner's memory only until their last reader has run."""
    entries = {
        Entry(number, output)
        for number, node in training.operators() if node.forward
        for output in range(len(node.outputs)) if output not in node.external
    }  # fmt: skip
    return entries - {Entry(entry.node, entry.index) for entry in training.outputs}


def _recomputable(problem: Problem) -> set[Entry]:
    return {Entry(e.node, e.index) for entries in problem.candidates.values() for e in entries} | problem.must_recompute


def _sink_side(problem: Problem, price: float, sizes: Mapping[Entry, int], after: int) -> set[object]:
    """The sink's side of the cheapest cut before the entries that are read after a position.

    It has entries, and the numbers of nodes that are recomputed. Entries that are not in ``sizes`` are stashed for
    free.
    """
    training, recomputable = problem.training, _recomputable(problem)
    number_of: dict[object, int] = defaultdict(lambda: len(number_of) + 2)  # of entries, and of recomputed nodes
    network = Network(2 + len(problem.candidates) + len(problem.must_recompute) + training.first_entry[-1])
    nodes = sorted({entry.node for entry in recomputable})
    for node in nodes:
        capacity = round(price * problem.costs.seconds[node])
        if capacity and node in problem.candidates:
            network.add(_SOURCE, number_of[node], capacity)
        for entry in _read(problem, node):
            network.add(number_of[entry], number_of[node], UNLIMITED)
    for entry, readers in training.backward_readers.items():
        if not training.nodes[entry.node].is_variable and readers[-1] > after:
            network.add(number_of[entry], _SINK, UNLIMITED)
    for entry in [key for key in number_of if isinstance(key, Entry)]:
        capacity = UNLIMITED if entry in problem.must_recompute else sizes.get(entry, 0)
        network.add(number_of[entry.node] if entry in recomputable else _SOURCE, number_of[entry], capacity)
    is_behind = network.sink_side(_SOURCE, _SINK)
    return {key for key, number in number_of.items() if is_behind[number]}


def _read(problem: Problem, number: int) -> list[Entry]:
    """The entries that a node reads if it is recomputed, without variables."""
    training = problem.training
    node = training.nodes[number]
    read = [
        Entry(entry.node, entry.index)
        for position, entry in enumerate(node.inputs)
        if position not in node.shape_only and not training.nodes[entry.node].is_variable
    ]
    return [*read, Entry(number, 1)] if node.is_masked else read


# A lower bound: the bytes that any schedule of some candidates needs at least, from one minimum cut.
#
# After each backward node, any schedule has in memory the backward entries that later nodes read, and a stash from
# which it can compute the forward entries that they read (`echo.policies.mincut`). Where the bound lies above a
# budget, no search for a schedule is needed.

_STASHED = 0.5  # of the bytes that are stashed without recomputation: a guess, which only chooses the position


def least_bytes(problem: Problem) -> int:
    """The lower bound, computed at the one position where it promises to be largest."""
    training = problem.training
    steps, arrays = len(training.nodes), training.arrays
    sizes = arrays["elements"] * arrays["dtype_size"]
    inplace = arrays["inplace"].reshape(-1, 3)
    views = inplace[:, 2] != 0
    owner = np.repeat(np.arange(steps), np.diff(arrays["inplace_begin"]))
    sizes[arrays["entry_begin"][owner[views]] + inplace[views, 1]] = 0
    sizes[(arrays["external"] | arrays["untouched"] | arrays["variable"][training.node_of]) != 0] = 0
    of_forward, of_backward = (
        _alive(training, np.where(arrays["forward"][training.node_of] == side, sizes, 0)) for side in (1, 0)
    )
    if not training.backward:
        return 0
    after = max(training.backward, key=lambda number: float(of_backward[number] + _STASHED * of_forward[number]))
    return int(of_backward[after]) + stash_lower_bound(problem, after)


def _alive(training: TrainingGraph, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bytes that are alive after each node: from the node that computes an entry to before its last reader."""
    changes = np.zeros(len(training.nodes) + 1, np.int64)
    np.add.at(changes, training.node_of, sizes)
    np.subtract.at(changes, training.last_use, sizes)
    return np.cumsum(changes)
