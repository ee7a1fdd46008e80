"""The thresholds by which one graph is preferred to another, each with what it was measured on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """By which rules `echo.pipeline` chooses between the plans of several graphs for the same model.

    ``enough``: a graph with fused operators that needs no more than this part of the user's planned bytes is taken
    without a look at others. Over the models of the benchmarks and the fused models of the tests, none of the others
    needed less than 0.92 of the bytes of such a graph. ``slack``: of all, the one with the most fused operators is
    taken that needs no more than this many times the bytes of the best; it is the faster one (all rows of
    ``benchmarks/results/fusion.json``). Over the same models it needed up to 1.15 times as many (GRU cells).

    ``mask_bytes``: masks as bits have to lower planned bytes by this part. ``mask_time``: of a step, about the most
    that masks as bits took in layers, a language model and a Transformer with Dropout (``fusion.json``).

    ``layout_gain``: part of the time of a family of products that another layout has to save. ``layout_bytes``: times
    the planned bytes that a plan with other layouts may need; a GRU at T=50, B=16 would need 1.06 for 0.78 times the
    time of its step.
    """

    enough: float = 0.5
    slack: float = 1.25
    mask_bytes: float = 0.01
    mask_time: float = 0.03
    layout_gain: float = 0.03
    layout_bytes: float = 1.07


RULES = Rules()
