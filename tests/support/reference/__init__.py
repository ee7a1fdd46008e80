"""The specification of each kernel in NumPy and float64, which the kernels' tests compare with.

NAME takes the inputs of NAME in ``table.cc`` in that order, and its parameters by name; it returns the outputs as a
tuple. NAME_grad takes the gradients of the outputs, the inputs and the outputs, and returns those of the inputs. None
stands for an absent tensor; a gradient that is None counts as zeros. Gradients are derived by hand.
"""

from __future__ import annotations

from tests.support.reference.arrays import *  # noqa: F403
from tests.support.reference.attention import *  # noqa: F403
from tests.support.reference.cells import *  # noqa: F403
from tests.support.reference.rows import *  # noqa: F403
