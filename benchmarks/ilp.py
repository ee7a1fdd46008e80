"""How near does each policy come to plans that an integer program took up to 24 hours for, and in how many seconds?

    python -m benchmarks.ilp

The graphs and the plans are those of tests/data/ilp: measured costs, published with the MONeT schedules. Every budget
is the peak of a published plan; every schedule is replayed, and its bytes and seconds are the replay's. Writes
results/ilp.json.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.record import parser, save
from echo.errors import OptionError
from echo.ir.ops import is_heavy_in_torch
from echo.ir.schedule import replay, steps_of
from echo.policies import policy_of
from echo.policies.data_graph import DataGraph, load_dag, problem_of_graph

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "ilp"
GRAPHS = ("vgg16_b176", "unet_b11", "resnet50_b184")
POLICIES = ("search", "ilp", "sublinear", "mincut", "echo")


def measure(graph: DataGraph, policy: str, budget: int) -> dict[str, Any] | None:
    """The schedule of a policy within a budget; None if it refuses the graph or does not keep the budget."""
    training, seconds = graph
    problem = problem_of_graph(training, seconds, max_bytes=budget)
    started = time.perf_counter()
    try:
        schedule = policy_of(policy).choose(problem)
    except OptionError as error:
        print(f"  {policy}: {error}")
        return None
    took = time.perf_counter() - started
    steps = steps_of(training, schedule)
    value = replay(training, [step.node for step in steps], seconds)
    again = [step.node for step in steps if step.node != step.position]
    overhead = value.seconds / sum(seconds) - 1
    print(f"  {policy}: {value.bytes / budget:.3f} of the budget, overhead {overhead:.5f}, {took:.2f} s", flush=True)
    if value.bytes > budget:
        return None
    return {
        "overhead": overhead,
        "seconds": took,
        "peak_bytes": value.bytes,
        "runs": len(again),
        "heavy_recomputed": sum(is_heavy_in_torch(training.nodes[number].op) for number in again),
    }


def main() -> None:
    """Measures every budget of every graph."""
    parser(__doc__).parse_args()
    rows = []
    for name in GRAPHS:
        path = DATA / f"{name}.json"
        graph = load_dag(path)
        for plan in json.loads(path.read_text(encoding="utf-8"))["ilp_plans"]:
            print(f"{name} within {plan['peak_bytes'] / 2**30:.2f} GB, published overhead {plan['overhead']:.5f}")
            found = {policy: measure(graph, policy, plan["peak_bytes"]) for policy in POLICIES}
            rows.append({"graph": name, "published": plan, **found})
    print("written:", save("ilp", rows).name)


if __name__ == "__main__":
    main()
