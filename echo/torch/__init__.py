"""echo's planner behind ``torch.compile``: a memory budget in bytes, kept by recomputation. Needs torch, not MXNet.

::

    import echo.torch

    model = torch.compile(model, backend=echo.torch.backend(memory_budget="6GB"))
"""

from echo.torch.backends import Backend, Partitioner, backend
from echo.torch.convert import convert, save_params
from echo.torch.plan import Frontier, GraphPlan
from echo.torch.planner import frontier
from echo.torch.tracker import PeakTracker, tracking

__all__ = [
    "Backend", "Frontier", "GraphPlan", "Partitioner", "PeakTracker", "backend", "convert", "frontier", "save_params",
    "tracking",
]  # fmt: skip
