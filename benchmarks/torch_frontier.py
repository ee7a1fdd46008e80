"""Peaks and recomputation of torch's own activation budgets and of echo, on the same joint graph of a torch model.

    python -m benchmarks.torch_frontier [MODEL ...]

Needs torch, not MXNet. Everything is modelled, with one accounting: the live bytes of storages over the operators of
the graphs that a partitioner returns, and the seconds of operators as they were timed on this machine. torch's budgets
are tried with its own estimates and with these seconds instead. Echo is given each peak that torch reaches, and what
lies below. With ``fused``, pointwise operators count as in `echo.torch.cost`. Writes results/torch_frontier.json after
each model: all take half an hour, most of it in torch's partitioner.
"""

from __future__ import annotations

import time
from typing import Any, Iterator, Mapping

import torch
from torch import fx

from benchmarks.record import known_rows, named, save
from benchmarks.torch_models import MODELS
from echo.errors import BudgetError
from echo.policies.least import Known
from echo.system.process import Deadline
from echo.torch import compat, planner, safety
from echo.torch.capture import JointGraph, aliased, storage_bytes, storage_key
from echo.torch.cost import seconds_of
from tests.support.torch_models import Traced, activation_budget, traced

RATIOS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
BELOW = (0.8, 0.6)  # times torch's least, that echo is asked for too
PLANNING = 10.0

# A division of a graph: by whom, at which of torch's ratios, the graphs, and the seconds that it took.
Division = tuple[str, float, "tuple[fx.GraphModule, fx.GraphModule]", float]


def storages(graph: fx.Graph, made_before: dict[str, Any]) -> dict[fx.Node, list[tuple[Any, int]]]:
    """The values that each node's outputs lie in, with their bytes; ``made_before`` has those of placeholders."""
    found: dict[fx.Node, list[tuple[Any, int]]] = {}
    for node in graph.nodes:
        base = aliased(node)
        if node.op == "placeholder":
            found[node] = made_before.get(node.name, [])
        elif base is not None and base in found:
            key = storage_key(safety.values_of(node)[0])
            found[node] = [value for value in found[base] if key is None or value[0][1] == key] or found[base]
        elif node.op == "call_function":
            found[node] = [((node, key), size) for key, size in storage_bytes(node).items()]
    return found


def evaluated(pair: tuple[fx.GraphModule, fx.GraphModule], count: int, seconds: dict[str, float]) -> tuple[int, float]:
    """The most live bytes in a step of two graphs, and the seconds of its operators."""
    forward, backward = (module.graph for module in pair)
    (end,), (last,) = (graph.find_nodes(op="output") for graph in (forward, backward))
    first = storages(forward, {})
    saved = {node.name: first.get(node, []) for node in end.args[0] if isinstance(node, fx.Node)}
    values = {**first, **storages(backward, saved)}
    steps = [node for graph in (forward, backward) for node in graph.nodes if node.op == "call_function"]
    ends = [node for node in (*end.args[0][:count], *last.args[0]) if isinstance(node, fx.Node)]
    last_use = {key: len(steps) for node in ends for key, _ in values.get(node, [])}
    for step in reversed(range(len(steps))):
        for node in (steps[step], *steps[step].all_input_nodes):
            for key, _ in values.get(node, []):
                last_use.setdefault(key, step)
    live = peak = 0
    alive: set[Any] = set()
    ending: dict[int, list[int]] = {}
    for step, node in enumerate(steps):
        for key, size in values.get(node, []):
            if key not in alive:
                alive.add(key)
                live += size
                ending.setdefault(last_use[key], []).append(size)
        peak = max(peak, live)
        live -= sum(ending.pop(step, []))
    return peak, sum(seconds.get(node.name, 0.0) for node in steps)


def estimator_of(seconds: Mapping[str, float]) -> dict[str, Any] | None:
    """The setting for an estimator of torch's that has the seconds measured here; None where torch has no such one."""
    if compat.version() < (2, 13):
        return None
    from torch._inductor.custom_graph_pass import CustomRuntimeEstimator

    class Measured(CustomRuntimeEstimator):
        def __call__(self, node: fx.Node) -> float:
            return 1e6 * seconds.get(node.name, 0.0)

        def uuid(self) -> None:
            return None

    return {"activation_memory_budget_runtime_estimator": Measured()}


def divisions(graph: Traced, estimator: str, changes: Mapping[str, Any]) -> Iterator[Division]:
    """What torch's own partitioner makes of a graph at each budget that it can solve."""
    for ratio in RATIOS:
        begin = time.perf_counter()
        try:
            with activation_budget(ratio, **changes):
                pair = compat.min_cut_partition(compat.copied(graph.module), graph.inputs, **graph.options)
        except Exception as error:  # torch's solvers fail for some graphs and budgets
            print(f"  torch {estimator} {ratio}: {type(error).__name__}: {str(error)[:90]}")
            continue
        yield f"torch, {estimator}", ratio, pair, time.perf_counter() - begin


def torch_row(division: Division, graph: Traced, seconds: dict[str, float], stock: float) -> dict[str, Any]:
    """The peak and the recomputation of a division."""
    by, ratio, pair, took = division
    peak, step = evaluated(pair, graph.options["num_fwd_outputs"], seconds)
    return {"by": by, "ratio": ratio, "peak_bytes": peak, "overhead": step / stock - 1, "planning_seconds": took}


def echo_row(joint: JointGraph, seconds: tuple[float, ...], budget: int) -> dict[str, Any]:
    """What the backend plans for a budget, each time as in a process that planned nothing before."""
    begin = time.perf_counter()
    planner.KNOWN = Known()
    try:
        plan = planner.plan_graph(joint, seconds, memory_budget=budget, deadline=Deadline.after(PLANNING))
    except BudgetError as error:
        return {"by": "echo", "budget_bytes": budget, "least_bytes": error.reachable,
                "planning_seconds": time.perf_counter() - begin}  # fmt: skip
    return {"by": "echo", "budget_bytes": budget, "peak_bytes": plan.peak_bytes, "overhead": plan.overhead,
            "recomputed": len(plan.recomputed), "planning_seconds": time.perf_counter() - begin}  # fmt: skip


def measure(name: str) -> list[dict[str, Any]]:
    """The rows of a model, with pointwise operators as they are and fused."""
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    graph = traced(model, *inputs)
    graph = graph._replace(module=compat.without_duplicates(graph.module))
    begin = time.perf_counter()
    joint = graph.joint
    reading = time.perf_counter() - begin
    own = list(divisions(graph, "flops", {}))
    rows = []
    for fused in (False, True):
        begin = time.perf_counter()
        seconds = seconds_of(joint, fused=fused)
        by_name = {node.name: value for node, value in zip(joint.order, seconds)}
        stock = sum(seconds)  # torch's default partition runs dropouts and attention twice: it takes them for impure
        kind = {"model": name, "fused": fused, "nodes": len(joint.order), "stock_bytes": joint.training.planned_bytes,
                "reading_seconds": reading, "timing_seconds": time.perf_counter() - begin}  # fmt: skip
        changes = estimator_of(by_name)
        measured = [] if changes is None else list(divisions(graph, "measured", changes))
        torchs = [torch_row(division, graph, by_name, stock) for division in own + measured]
        peaks = {row["peak_bytes"] for row in torchs}
        budgets = sorted(peaks | {int(share * min(peaks)) for share in BELOW}, reverse=True)
        echos = [echo_row(joint, seconds, budget) for budget in budgets if budget < joint.training.planned_bytes]
        rows += [{**kind, **row} for row in torchs + echos]
        print(f"{name}{', fused' if fused else ''}: {len(joint.order)} nodes, "
              f"{joint.training.planned_bytes / 1e6:.1f} MB, {1e3 * stock:.1f} ms", flush=True)  # fmt: skip
        for row in torchs + echos:
            _show(row)
    return rows


def _show(row: dict[str, Any]) -> None:
    what = f"{row['peak_bytes'] / 1e6:8.2f} MB {100 * row['overhead']:+7.2f} %" if "overhead" in row else \
        f"least {row['least_bytes'] / 1e6:.2f} MB"  # fmt: skip
    print(f"  {row['by']:16} {row.get('ratio', ''):4} {what} {row['planning_seconds']:6.1f} s", flush=True)


def main() -> None:
    """Measures the models that the command line names, and keeps the rows of others."""
    names = named(__doc__, MODELS)
    torch.set_num_threads(1)
    rows = [row for row in known_rows("torch_frontier") if row["model"] not in names]
    for name in names:
        rows += measure(name)
        path = save("torch_frontier", rows, ("torch",))
    print("written:", path)


if __name__ == "__main__":
    main()
