"""Random options of a plan."""

from __future__ import annotations

import random
from typing import Any, Sequence

MAX_TIMES = (1.0, 1.5, 4.0, 4.0, 4.0)  # times a step of the original graph
POLICIES = ("search", "search", "search", "all", "none", "echo", "sublinear", "mincut", "ilp")


def draw_options(rng: random.Random, operators: Sequence[str], small: bool) -> dict[str, Any]:
    """Options of `echo.optimize` for a graph of these operators; ``small``: small enough for the policy "ilp"."""
    options: dict[str, Any] = {"policy": rng.choice(POLICIES), "fuse": rng.random() < 0.25}
    if options["policy"] == "ilp" and not small:
        options["policy"] = "search"
    bound = rng.choice((None, None, "auto", 0.0, 0.3))
    options["max_overhead"] = None if options["policy"] == "all" else bound  # which it exceeds
    if rng.random() < 0.12:
        options["memory_budget"] = rng.choice((0.5, 0.8, 0.95, "64KB", 10**6))
    for name in ("keep", "recompute"):
        if rng.random() < (0.3 if name == "recompute" else 0.1) and operators:
            options[name] = sorted({rng.choice(operators) for _ in range(rng.randint(1, 3))})
    if rng.random() < 0.3:
        options["recompute"] = ["*"]
    if rng.random() < 0.1:
        options["optimizer_states"] = rng.randint(0, 2)
    if rng.random() < 0.15:
        options["max_time"] = rng.choice(MAX_TIMES)
    if rng.random() < 0.1:
        options["heavy"] = "never"
    return options


def deepen(rng: random.Random, options: dict[str, Any], small: bool) -> None:
    """Changes options so that compute-heavy operators may run twice, mostly without a budget."""
    options["policy"] = "ilp" if small and rng.random() < 0.2 else "search"
    options["max_overhead"] = rng.choice((None, "auto", 0.3, 2.0, 2.0))
    options["max_time"] = rng.choice((None, *MAX_TIMES)) if options["max_overhead"] else rng.choice(MAX_TIMES)
    options["heavy"] = "auto"
    if rng.random() < 0.8:
        options.pop("memory_budget", None)
    if rng.random() < 0.9:
        options.pop("recompute", None)  # of an operator that cannot be recomputed it is an error


def unmet(options: dict[str, Any], error: Exception) -> str | None:
    """The fault that a bound on a step's time was not met: the original graph meets it, if nothing else is asked."""
    asked = options.get("recompute") or options.get("memory_budget") or options["policy"] not in ("search", "ilp")
    return None if asked else f"TimeLimitError: {error}"
