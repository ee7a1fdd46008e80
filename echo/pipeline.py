"""The pipeline, in the order in which a graph goes through it. Read this file first.

The framework turns a symbol and its shapes into a `Graph`; each pass below takes values and gives one; at bind the
runtime binds the rewritten graph, and the native hook applies the plan in MXNet's own gradient pass.

`BASES` make graphs to choose between, `PIPELINE` plans each of them, and `REFINEMENTS` offer another graph instead of
the one that was chosen. That one is planned once more with compute-heavy operators as candidates, if the bounds on time
have room for them. The thresholds of those choices are in `echo.passes.rules`.
"""

from __future__ import annotations

from echo.passes import choose
from echo.passes.analysis import Differentiate, EstimateCost, FindCandidates, Partition
from echo.passes.fuse import Fuse
from echo.passes.pass_manager import Pass
from echo.passes.refinements import BatchProducts, PackMasks, Refinement
from echo.passes.request import Request
from echo.passes.rewrite import Confirm, Explain, Rewrite
from echo.passes.select import Select
from echo.passes.variant import PlanResult

BASES = (
    Fuse(),  #              Graph -> Fused: kernels of our own instead of layers, cells and attention scores
    Fuse(layers=False),  #  the same without whole layers; the last base is the original graph
)
PIPELINE: tuple[Pass, ...] = (
    Differentiate(),  #     Graph -> TrainingGraph, from MXNet's own gradient pass; gradients read less where they can
    FindCandidates(),  #    which feature maps may be recomputed, what the user insists on
    Partition(),  #         segments between compute-heavy operators
    EstimateCost(),  #  seconds of every node, measured on this device
    Select(),  #            the policy's choice, and the best match range of MXNet's memory planner
    Rewrite(),  #           the choice, written into the symbol's attributes
    Confirm(),  #           never worse: MXNet's own planner is asked
    Explain(),  #           the Plan: every feature map, what happens to it, and why
)
REFINEMENTS: tuple[Refinement, ...] = (
    PackMasks(),  #         Fused -> Masked: masks of Dropout and ReLU as bits, where that lowers planned memory
    BatchProducts(),  #     Fused -> Batched: products with one weight in the layout that is fastest on this device
)


def plan(request: Request) -> PlanResult:
    """Plans the graphs that `BASES` make, chooses one, refines it, and lets heavy operators run twice where that pays.

    Raises:
        EchoError: the options, the graph or the budget cannot be met; the message says what was expected.
    """
    return choose.plan(request, choose.Stages(BASES, PIPELINE, REFINEMENTS))
