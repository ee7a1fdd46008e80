"""A lower bound: the bytes that any schedule of some candidates needs at least, from one minimum cut.

After each backward node, any schedule has in memory the backward entries that later nodes read, and a stash from which
it can compute the forward entries that they read (`echo.policies.mincut`). Where the bound lies above a budget, no
search for a schedule is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from echo.ir.training_graph import TrainingGraph
from echo.policies.problem import Problem
from echo.policies.solvers.stash import stash_bound

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
    backward = [number for number, node in training.operators() if not node.forward]
    if not backward:
        return 0
    after = max(backward, key=lambda number: float(of_backward[number] + _STASHED * of_forward[number]))
    return int(of_backward[after]) + stash_bound(problem, after)


def _alive(training: TrainingGraph, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bytes that are alive after each node: from the node that computes an entry to before its last reader."""
    changes = np.zeros(len(training.nodes) + 1, np.int64)
    np.add.at(changes, training.node_of, sizes)
    np.subtract.at(changes, training.last_use, sizes)
    return np.cumsum(changes)
