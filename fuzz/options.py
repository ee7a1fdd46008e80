"""Random options of a plan."""

from __future__ import annotations

import random
from typing import Any, Sequence

POLICIES = ("search", "search", "search", "all", "none", "echo", "sublinear", "mincut", "ilp")


def draw_options(rng: random.Random, operators: Sequence[str], small: bool) -> dict[str, Any]:
    """Options of `echo.optimize` for a graph of these operators; ``small``: small enough for the policy "ilp"."""
    options: dict[str, Any] = {"policy": rng.choice(POLICIES), "fuse": rng.random() < 0.25}
    if options["policy"] == "ilp" and not small:
        options["policy"] = "search"
    options["max_overhead"] = rng.choice((None, None, "auto", 0.0, 0.3))
    if rng.random() < 0.12:
        options["memory_budget"] = rng.choice((0.5, 0.8, 0.95, "64KB", 10**6))
    for name in ("keep", "recompute"):
        if rng.random() < (0.3 if name == "recompute" else 0.1) and operators:
            options[name] = sorted({rng.choice(operators) for _ in range(rng.randint(1, 3))})
    if rng.random() < 0.3:
        options["recompute"] = ["*"]
    if rng.random() < 0.1:
        options["optimizer_states"] = rng.randint(0, 2)
    return options
