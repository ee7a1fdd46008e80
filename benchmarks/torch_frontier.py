"""Peaks and recomputation of torch's own activation budgets and of echo, on the same joint graph of a torch model.

    python -m benchmarks.torch_frontier gpt translation resnet

Needs torch, not MXNet. Everything is modelled, with one accounting: the live bytes of storages over the operators of
the graphs that a partitioner returns, and the seconds of operators as they were timed on this machine. torch's budgets
are tried with its own estimates and with these seconds instead. Echo is given each peak that torch reaches, and what
lies below. With ``fused``, pointwise operators count as in `echo.torch.cost`. Writes
results/torch_frontier.json.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable, Iterator

import torch
from torch import fx, nn

from benchmarks.record import known_rows, save
from echo.errors import BudgetError
from echo.policies.least import Known
from echo.system.process import Deadline
from echo.torch import compat, planner, safety
from echo.torch.capture import JointGraph, aliased, storage_bytes, storage_key
from echo.torch.cost import seconds_of
from tests.support.torch_models import GPT, ResNet, Traced, Translation, traced

RATIOS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
BELOW = (0.8, 0.6)  # times torch's least, that echo is asked for too
PLANNING = 10.0

Model = Callable[[], "tuple[nn.Module, tuple[torch.Tensor, ...]]"]


def _words(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, limit, shape)


MODELS: dict[str, Model] = {
    "gpt": lambda: (GPT(6, 256, 256, 0.0), (_words(50, 4, 256), _words(50, 4, 256))),
    "translation": lambda: (Translation(256), (_words(40, 32, 20), _words(40, 32, 20), _words(40, 32, 20))),
    "resnet": lambda: (ResNet(64, 6), (torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,)))),
}


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


def torch_settings(seconds: dict[str, float]) -> Iterator[tuple[str, dict[str, Any]]]:
    """torch's estimators, and one that has the seconds measured here."""
    yield "flops", {}
    if compat.version() < (2, 13):
        return
    from torch._inductor.custom_graph_pass import CustomRuntimeEstimator

    class Measured(CustomRuntimeEstimator):
        def __call__(self, node: fx.Node) -> float:
            return 1e6 * seconds.get(node.name, 0.0)

        def uuid(self) -> None:
            return None

    yield "measured", {"activation_memory_budget_runtime_estimator": Measured()}


def torch_rows(graph: Traced, seconds: dict[str, float], stock: float) -> Iterator[dict[str, Any]]:
    """A row for each budget and estimator of torch's that it can solve."""
    for estimator, changes in torch_settings(seconds):
        for ratio in RATIOS:
            begin = time.perf_counter()
            try:
                with compat.activation_budget(ratio, **changes):
                    pair = compat.min_cut_partition(compat.copied(graph.module), graph.inputs, **graph.options)
            except Exception as error:  # torch's solvers fail for some graphs and budgets
                print(f"  torch {estimator} {ratio}: {type(error).__name__}: {str(error)[:90]}")
                continue
            peak, took = evaluated(pair, graph.options["num_fwd_outputs"], seconds)
            yield {"by": f"torch, {estimator}", "ratio": ratio, "peak_bytes": peak, "overhead": took / stock - 1,
                   "planning_seconds": time.perf_counter() - begin}  # fmt: skip


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


def measure(name: str, fused: bool) -> list[dict[str, Any]]:
    """The rows of a model."""
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    graph = traced(model, *inputs)
    graph = graph._replace(module=compat.without_duplicates(graph.module))
    joint = graph.joint
    seconds = seconds_of(joint, fused=fused)
    by_name = {node.name: value for node, value in zip(joint.order, seconds)}
    pair = compat.default_partition(compat.copied(graph.module), graph.inputs, **graph.options)
    peak, _ = evaluated(pair, graph.options["num_fwd_outputs"], by_name)
    stock = sum(seconds)  # torch's default partition runs dropouts and attention twice: it takes them for impure
    kind = {"model": name, "fused": fused, "nodes": len(joint.order), "stock_bytes": joint.training.planned_bytes}
    print(f"{name}{', fused' if fused else ''}: {len(joint.order)} nodes, {joint.training.planned_bytes / 1e6:.1f} MB "
          f"by echo's graph, {peak / 1e6:.1f} MB by torch's, {1e3 * stock:.1f} ms", flush=True)  # fmt: skip
    rows = [{**kind, **row} for row in torch_rows(graph, by_name, stock)]
    least = min(row["peak_bytes"] for row in rows)
    budgets = sorted({row["peak_bytes"] for row in rows} | {int(share * least) for share in BELOW}, reverse=True)
    rows += [{**kind, **echo_row(joint, seconds, budget)} for budget in budgets if budget < peak]
    for row in rows:
        what = f"{row['peak_bytes'] / 1e6:8.2f} MB {100 * row['overhead']:+7.2f} %" if "overhead" in row else \
            f"least {row['least_bytes'] / 1e6:.2f} MB"  # fmt: skip
        print(f"  {row['by']:16} {row.get('ratio', ''):4} {what} {row['planning_seconds']:6.1f} s", flush=True)
    return rows


def main() -> None:
    """Measures the models that the command line names, and keeps the rows of others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL", default=list(MODELS))
    names = parser.parse_args().models
    torch.set_num_threads(1)
    rows = [row for row in known_rows("torch_frontier") if row["model"] not in names]
    for name in names:
        for fused in (False, True):
            rows += measure(name, fused)
    print(save("torch_frontier", rows, ("torch",)))


if __name__ == "__main__":
    main()
