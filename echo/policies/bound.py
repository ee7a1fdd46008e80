"""A lower bound: what any schedule of some candidates has in memory at least, from one minimum cut.

Whatever runs again, behind any backward node there is in memory what later ones read of the backward pass so far, and a
stash from which all that they read of the forward pass can be had (`echo.policies.mincut`). Where the bound lies above
a budget, nobody needs to search for a schedule.
"""

from __future__ import annotations

import numpy as np

from echo.policies.mincut import stash_bound
from echo.policies.problem import Problem

_STASHED = 0.5  # of what is stashed without recomputation: a guess, for where to look


def least_bytes(problem: Problem) -> int:
    """No schedule of this problem's candidates needs less. Found at the one position where it promises most."""
    steps = len(problem.training.nodes)
    of_forward, of_backward = np.zeros(steps + 1), np.zeros(steps + 1)
    last = _last_reads(problem)
    for number, node in problem.training.operators():
        alive = of_forward if node.forward else of_backward
        views = {output for _, output, same in node.inplace if same}
        for output, kind in enumerate(node.outputs):
            if output not in node.unowned and output not in views:
                alive[number] += kind.bytes
                alive[max(last.get((number, output), number), number)] -= kind.bytes
    of_forward, of_backward = np.cumsum(of_forward), np.cumsum(of_backward)
    backward = [number for number, node in problem.training.operators() if not node.forward]
    if not backward:
        return 0
    after = max(backward, key=lambda number: float(of_backward[number] + _STASHED * of_forward[number]))
    return int(of_backward[after]) + stash_bound(problem, after)


def _last_reads(problem: Problem) -> dict[tuple[int, int], int]:
    """By node and output: the last node that reads it, or the end for what is an output of the graph."""
    reads = problem.training.reads
    ignored = {(n, i) for n, node in enumerate(problem.training.nodes) for i in node.ignored}
    last: dict[tuple[int, int], int] = {}
    columns = (reads.reader, reads.position, reads.source, reads.index)
    for reader, position, node, output in zip(*(column.tolist() for column in columns)):
        if (reader, position) not in ignored:
            last[node, output] = reader
    last.update({(entry.node, entry.index): len(problem.training.nodes) for entry in problem.training.outputs})
    return last
