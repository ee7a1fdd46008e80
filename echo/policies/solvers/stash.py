"""The least stash, by a minimum cut of the forward graph before the maps that gradients read."""

from __future__ import annotations

from collections import defaultdict
from typing import Mapping

from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.policies.problem import Problem
from echo.policies.solvers.flow import UNLIMITED, Network

_SOURCE, _SINK = 0, 1


def least_stash(problem: Problem, price: float) -> list[int]:
    """The candidates to recompute for the least stash, where a second of recomputation costs ``price`` bytes."""
    sizes = {entry: problem.training.type_of(entry).bytes for entry in _freed(problem.training)}
    behind = _sink_side(problem, price, sizes, -1)
    return [node for node in sorted(problem.candidates) if node in behind]


def stash_bound(problem: Problem, after: int) -> int:
    """The bytes of the least stash from which all forward entries that nodes after ``after`` read can be computed.

    No schedule of these candidates has less in memory there. Entries that share memory with another do not count.
    """
    nodes = problem.training.nodes
    views = {Entry(number, out) for number, node in enumerate(nodes) for _, out, same in node.inplace if same}
    sizes = {entry: problem.training.type_of(entry).bytes for entry in _freed(problem.training) - views}
    behind = _sink_side(problem, 0.0, sizes, after)
    recomputable = _recomputable(problem)
    return sum(size for entry, size in sizes.items()
               if entry in behind and not (entry in recomputable and entry.node in behind))  # fmt: skip


def _freed(training: TrainingGraph) -> set[Entry]:
    """The entries that lie in the planner's memory only until their last reader has run."""
    entries = {
        Entry(number, output)
        for number, node in training.operators() if node.forward
        for output in range(len(node.outputs)) if output not in node.external
    }  # fmt: skip
    return entries - {Entry(entry.node, entry.index) for entry in training.outputs}


def _recomputable(problem: Problem) -> set[Entry]:
    return {Entry(e.node, e.index) for entries in problem.candidates.values() for e in entries} | problem.forced


def _sink_side(problem: Problem, price: float, sizes: Mapping[Entry, int], after: int) -> set[object]:
    """The sink's side of the cheapest cut before the entries that are read after a position.

    It has entries, and the numbers of nodes that run again. Entries that are not in ``sizes`` are stashed for free.
    """
    training, recomputable = problem.training, _recomputable(problem)
    number_of: dict[object, int] = defaultdict(lambda: len(number_of) + 2)  # of entries, and of nodes that run again
    network = Network(2 + len(problem.candidates) + len(problem.forced) + training.first_entry[-1])
    nodes = sorted({entry.node for entry in recomputable})
    for node in nodes:
        capacity = round(price * problem.overhead.seconds[node])
        if capacity and node in problem.candidates:
            network.add(_SOURCE, number_of[node], capacity)
        for entry in _read(problem, node):
            network.add(number_of[entry], number_of[node], UNLIMITED)
    for entry, readers in training.backward_readers.items():
        if not training.nodes[entry.node].is_variable and readers[-1] > after:
            network.add(number_of[entry], _SINK, UNLIMITED)
    for entry in [key for key in number_of if isinstance(key, Entry)]:
        capacity = UNLIMITED if entry in problem.forced else sizes.get(entry, 0)
        network.add(number_of[entry.node] if entry in recomputable else _SOURCE, number_of[entry], capacity)
    is_behind = network.sink_side(_SOURCE, _SINK)
    return {key for key, number in number_of.items() if is_behind[number]}


def _read(problem: Problem, number: int) -> list[Entry]:
    """The entries that a node reads if it runs again, without variables."""
    training = problem.training
    node = training.nodes[number]
    read = [
        Entry(entry.node, entry.index)
        for position, entry in enumerate(node.inputs)
        if position not in node.ignored and not training.nodes[entry.node].is_variable
    ]
    return [*read, Entry(number, 1)] if node.is_masked else read
