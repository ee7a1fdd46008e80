"""The graphs that a CachedOp chooses between, and operators that MXNet must not fuse in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import mxnet as mx

from echo import native
from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, NO_INPLACE_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.ops import spec
from echo.plans.decisions import implements
from echo.plans.plan import Plan
from echo.runtime.backward_checks import InputWatch, watch_of

# MXNet's own CachedOp, and one that leaves pointwise operators as they are on GPUs.

StockCachedOp = mx.nd.CachedOp  # before anybody puts another in its place


def _unfused(kind: Any) -> Any:
    """A class of CachedOps of planned graphs: MXNet decides in a call, the first on a device, whether to fuse."""

    class UnfusedCachedOp(kind):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """As ``CachedOp.__call__``."""
            with native.unfused():
                return super().__call__(*args, **kwargs)

    return UnfusedCachedOp


# Only CUDA builds of MXNet fuse. Another copy of echo may have put a function instead of the class: this copy then
# refuses to plan.
_IS_NEEDED = isinstance(StockCachedOp, type) and mx.runtime.Features().is_enabled("CUDA")
UnfusedCachedOp = _unfused(StockCachedOp) if _IS_NEEDED else StockCachedOp


# What a CachedOp of echo's runs for one signature of its inputs.

_MARKS = (PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, GRADIENT_ATTRIBUTE, NO_INPLACE_ATTRIBUTE)


@dataclass(frozen=True)
class CachedChoice:
    """The choice for one signature: the graph of a plan, or None for the user's own; ``key`` is equal for equal plans.

    ``mode_dependent`` holds the operators that run again and have to do so in the mode of the forward pass.
    ``in_training`` says that the graph serves passes in training alone: such operators or masks of Dropout run again.
    ``implements`` says that its gradients read less than the user's own; ``watch`` has the inputs that backward reads
    again.
    """

    graph: Graph | None = None
    key: tuple[Any, ...] = ()
    mode_dependent: frozenset[str] = frozenset()
    in_training: bool = False
    implements: bool = False
    fuses: bool = False
    watch: InputWatch | None = None


STOCK = CachedChoice()


def chosen(plan: Plan, graph: Graph, user: Graph, inputs: Sequence[str]) -> CachedChoice:
    """The choice of a planned graph; ``user`` is the graph with these inputs that it was planned for."""
    recomputed = [node for node in graph.nodes if PLAN_ATTRIBUTE in node.attrs]
    mode_dependent = frozenset(node.op for node in recomputed if spec(node.op).train_mode_sensitive(node.attrs))
    return CachedChoice(
        graph=graph,
        key=(plan.fused, *(tuple(node.attrs.get(mark, "") for mark in _MARKS) for node in graph.nodes)),
        mode_dependent=mode_dependent,
        in_training=bool(mode_dependent) or any(spec(node.op).clone_op for node in recomputed),
        implements=implements(graph),
        fuses=bool(plan.fused),
        watch=watch_of(graph, user, inputs),
    )
