"""The thresholds by which one graph is preferred to another, each with the measurement after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """By which rules `echo.pipeline` chooses between the plans of several graphs for the same model.

    ``enough``: a graph with fused operators that needs no more than this part of the user's planned bytes is taken, and
    no other base is planned. Over the models of the benchmarks and the fused models of the tests, no other base needed
    less than ``other`` of the bytes of such a graph; where its workspaces are so large that such a base could be taken
    in its place, that one is planned. Of the bases, the one with the most fused operators is taken that needs no more
    than ``more`` times the fewest bytes and is not slower, or no more than ``slack`` times and takes at most the part
    ``faster`` of the time, or ``drawing`` where workspaces alone make it the larger one: an LSTM layer (512 units, 50
    steps, batch 64) needs 1.12 times the bytes of its cells with them, 0.87 without, for 0.7 to 0.8 of their time.
    Where nothing was measured the one with more fused operators counts as the faster one, which it is in all rows of
    ``benchmarks/results/fusion.json``.
    ``step``: of shorter steps, in seconds, times do not decide: they are those of a few dozen launches, which vary by
    more than graphs differ. A step of 0.61 ms that was predicted at 0.995 took 1.11: fused operators have to be surely
    faster there.
    ``tiny``: of graphs whose bytes that depend on the plan are fewer, so many bytes of workspaces do not decide, since
    MXNet's own operators draw as many, which is not known. Of all others, every workspace counts.

    ``gain``: the part of the bytes that a plan has to save if it makes a step longer. ``sure``: the part of a step that
    fused operators have to save where they save less than that of the bytes, since a prediction is off by as much in
    the median: a GRU that saved 4 % was predicted at 0.995 and took 1.06. ``cost``: recomputation of a
    smaller part of the step is no longer step, since no clock sees it.

    ``heavy``: copies of compute-heavy operators have to save this part of the bytes for each part of a step of the
    original graph that they take: 10 % of the step at least 5 % of the bytes, as ``gain``.

    ``host``: seconds, within the default bound, by which recomputation makes a step longer whatever runs again: the
    arrays that it reads are noted in forward and looked at in backward. A step of 2.05 ms in which 0.02 were computed
    again took 2.23.

    ``launch``: seconds by which any plan makes a step longer, in the Python of an executor. They count where a plan
    saves less than ``gain``: steps of 0.3 ms became 5 to 7 % longer for 0.1 % of the bytes.

    ``unsure``: the part of the default bound on a step that is left free where the seconds are measured. Of steps
    predicted at 1.10, those of ResNet-50, DenseNet-121 and Inception took 1.10 to 1.13. A bound of the user's own is
    one on the prediction.

    ``late_gain``: where MXNet's threads free arrays late (`echo.ir.training_graph.MemoryPool`), the part of the bytes
    that a plan has to save. Below 0.09 the fake device saw up to 0.04 more than stock, of 16 blocks; above, less in
    all.

    ``mask_bytes``: masks as bits have to lower planned bytes by this part. ``mask_time``: the part of a step that masks
    as bits took at most, in layers, a language model and a Transformer with Dropout (``fusion.json``).

    ``layout_gain``: the part of the time of a group of products that another layout has to save. ``layout_bytes``: a
    plan with other layouts may need this many times the planned bytes; a GRU at T=50, B=16 would need 1.06 times as
    many for 0.78 times the time of its step.
    """

    enough: float = 0.5
    other: float = 0.92
    slack: float = 1.25
    more: float = 1.1
    faster: float = 0.75
    drawing: float = 0.9
    step: float = 1e-3
    tiny: int = 100_000
    gain: float = 0.05
    sure: float = 0.03
    cost: float = 0.005
    heavy: float = 0.5
    host: float = 1.5e-4
    launch: float = 2e-5
    unsure: float = 0.2
    late_gain: float = 0.1
    mask_bytes: float = 0.01
    mask_time: float = 0.03
    layout_gain: float = 0.03
    layout_bytes: float = 1.07


RULES = Rules()
