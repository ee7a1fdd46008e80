"""Profiles of small and of made-up graphs, for the tests of what is made of them."""

from __future__ import annotations

import random

import echo
from echo.plans.decisions import STASH, Decision, Memory, Note
from echo.plans.key import PlanKey
from echo.plans.plan import Plan
from echo.report.profile import Profile
from echo.report.usage import ALWAYS, Tensor, Usage

MB = 10**6
OPS = ("tanh", "sigmoid", "relu", "softsign", "exp", "Dropout", "LayerNorm", "BatchNorm", "Pooling")
_KINDS = ("feature maps", "map gradients", "temporaries", "recomputed maps")


def plan_of(decisions: tuple[Decision, ...] = ()) -> Plan:
    """A plan with these decisions that says little else."""
    memory = Memory(230 * MB, 0, {}, {}, {})
    key = PlanKey("graph", {}, (), "cpu", "executor", {})
    return Plan(decisions, memory, memory, None, 1.0, 0.031, 1, "search", "cpu", "hook", key, notes=(Note("a note"),))


def made_up(nodes: int, seed: int = 1) -> Profile:
    """A profile of as many operators, half of them in the forward pass, in stock and in echo's graph."""
    draw = random.Random(seed)
    usages = {name: _usage(nodes, draw, scale) for name, scale in (("stock", 4), ("echo", 1))}
    decisions = tuple(
        Decision(i, f"layer{i % 700}_step{i}", OPS[i % 9], 0, STASH, 4096 + i, 1e-5, f"read by {i % 9} gradients")
        for i in range(nodes // 2)
    )
    points = ((50.0 * MB, 1.2, 0.2), (90.0 * MB, 0.9, 0.0))
    rows = tuple({"budget": total, "total": total, "time": time, "overhead": more} for total, time, more in points)
    return Profile(usages, plan_of(decisions), "cpu", {"echo": echo.__version__}, rows)


def _usage(nodes: int, draw: random.Random, scale: int) -> Usage:
    steps = tuple(f"layer{i % 700}_step{i}_{'tanh' if i < nodes // 2 else 'backward'}" for i in range(nodes))
    tensors = [Tensor("weight", "", "weight", "weights", 9 * MB, ALWAYS, nodes - 1)]
    for number, name in enumerate(steps):
        last = min(nodes - 1, number + draw.randint(0, nodes // 3))
        kind, size = draw.choice(_KINDS), scale * draw.randint(1, 4096)
        tensors.append(Tensor(name, "tanh", name.split("_")[0], kind, size, number, last))
    usage = Usage(0, {}, steps, nodes // 2, tuple(tensors))
    return Usage(usage.live_peak + MB, {}, steps, nodes // 2, tuple(tensors))
