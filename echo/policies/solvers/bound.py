"""A lower bound: what any schedule of some candidates has in memory at least, from one minimum cut.

Whatever runs again, behind any backward node there is in memory what later ones read of the backward pass so far, and a
stash from which all that they read of the forward pass can be had (`echo.policies.mincut`). Where the bound lies above
a budget, nobody needs to search for a schedule.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from echo.ir.training_graph import TrainingGraph
from echo.policies.problem import Problem
from echo.policies.solvers.stash import stash_bound

_STASHED = 0.5  # of what is stashed without recomputation: a guess, for where to look


def least_bytes(problem: Problem) -> int:
    """No schedule of this problem's candidates needs less. Found at the one position where it promises most."""
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
    """Bytes of entries behind each node: from the one that makes them to the one before the last that reads them."""
    changes = np.zeros(len(training.nodes) + 1, np.int64)
    np.add.at(changes, training.node_of, sizes)
    np.subtract.at(changes, training.last_use, sizes)
    return np.cumsum(changes)
