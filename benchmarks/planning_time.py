"""How long does planning take as graphs grow, what does it find, and how fast is a plan that is on disk?

    python -m benchmarks.planning_time

Planning is all from a training graph as data to the finished plan, operators not measured; what MXNet itself takes to
make that graph is apart. ``cached`` is what a bind pays for a plan on disk. All of it runs in one thread, so seconds of
the processor are those of a quiet machine; the plot and the bars are of these, seconds by the clock stand next to them.
Unrolled LSTMs of 1,000 to 100,000 forward nodes, each in a process of its own. Writes results/planning_time.json and
results/planning_time.png.
"""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Iterator, Mapping, Sequence
from unittest import mock

from benchmarks.record import RESULTS, apart, parser, save
from echo.estimators.cost_model import estimate
from echo.estimators.cost_table import CostTable
from echo.estimators.storage_planner import Evaluator, make_planner
from echo.ir.graph import Graph
from echo.ir.training_graph import TrainingGraph
from echo.passes.pass_manager import run
from echo.passes.request import Request
from echo.passes.rewrite import Confirmed
from echo.passes.select import Selection
from echo.pipeline import PIPELINE
from echo.plans.key import PlanKey
from echo.plans.options import Options
from echo.plans.plan import Plan

# Time steps that make about 1,000, 3,000, 10,000, 30,000 and 100,000 forward nodes
STEPS = {"lstm": (80, 230, 800, 2300, 7690), "attention": (19, 57, 189, 566, 1885)}
ROUNDS, ROUNDS_OF_LARGE, LARGE = 5, 3, 50_000  # nodes from which on a median of fewer rounds will do
LONG_EFFORT = 40  # times the usual, for what a long search finds
LONG_NODES = 12_000  # forward nodes up to which it is made
BARS = {"10,000 nodes, s": 1.0, "100,000 nodes, s": 15.0, "slope": 1.15, "cached at 10,000 nodes, s": 0.05}


@dataclass(frozen=True)
class _Frontend:
    """Answers to planning's questions without MXNet."""

    training: TrainingGraph
    key: PlanKey
    effort: float = 1.0
    device: str = "cpu"
    hook: bool = True
    onednn: bool = True
    fuses: bool = False
    match_range: int = 16
    static: Mapping[str, int] = field(default_factory=dict)
    workspace_slots: int = 1
    family: str = ""

    def differentiate(self) -> TrainingGraph:
        return self.training

    def evaluator(self, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        evaluator, effort = make_planner(training, seconds)
        return evaluator, int(self.effort * effort)


@dataclass(frozen=True)
class _Accept:
    """Replaces `echo.passes.rewrite.Confirm`, which asks MXNet."""

    name: ClassVar[str] = "accept"
    needs: ClassVar[tuple[type, ...]] = (Selection,)
    gives: ClassVar[type] = Confirmed

    def run(self, selection: Selection) -> Confirmed:
        return Confirmed(selection.planned_bytes, True)


def plan(graph: Graph, training: TrainingGraph, key: PlanKey, details: bool, effort: float = 1.0) -> Plan:
    """The stages of `echo.pipeline` that are echo's own."""
    request = Request(graph, Options(), _Frontend(training, key, effort), details=details)
    overhead = estimate(training, CostTable("none", Path("nowhere")), None, 0.0)
    stages = [_Accept() if stage.gives is Confirmed else stage for stage in PIPELINE]
    return run(stages, [request, training, overhead], request.progress)[Plan]


def model(name: str, steps: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """An unrolled network and the shapes of its inputs; small maps, since only the number of nodes matters."""
    from benchmarks.models import lm_symbol, nmt_symbol

    if name == "lstm":
        return lm_symbol(steps, 64, 1, 500), dict.fromkeys(("data", "softmax_label"), (8, steps))
    return nmt_symbol(steps, 32, 300), dict.fromkeys(("source", "target", "softmax_label"), (4, steps))


def measure(name: str, steps: str) -> dict[str, Any]:
    """One network of one length: seconds of planning, with and without the report of where memory is, and bytes."""
    import mxnet as mx

    from echo.frontend.capture import training_graph
    from echo.frontend.install import install_hook
    from echo.frontend.plan_key import plan_key
    from echo.frontend.symbols import graph_of, infer_binding

    symbol, shapes = model(name, int(steps))
    requests = {argument: "null" if argument in shapes else "write" for argument in symbol.list_arguments()}
    graph, binding = graph_of(symbol), infer_binding(symbol, shapes, None, requests)
    if install_hook():
        raise RuntimeError("the native hook is not there")
    gc.disable()  # as echo does while it plans
    started = time.perf_counter()
    training = training_graph(graph, binding, mx.cpu())
    mxnet_seconds = time.perf_counter() - started
    seconds: dict[bool, list[float]] = {False: [], True: []}
    processor: list[float] = []
    made_for = plan_key(graph, binding, "cpu")
    rounds = ROUNDS if len(training.nodes) < LARGE else ROUNDS_OF_LARGE
    for number in range(rounds):
        for details, found in seconds.items():
            if details and number and rounds < ROUNDS:
                continue
            fresh = TrainingGraph(**{name: getattr(training, name) for name in training.__dataclass_fields__})
            before, started = time.process_time(), time.perf_counter()
            planned = plan(graph, fresh, made_for, details)
            found.append(time.perf_counter() - started)
            if not details:
                processor.append(time.process_time() - before)
            gc.collect()
    forward = sum(node.forward for _, node in training.operators())
    row = {
        "network": name, "steps": int(steps), "forward_nodes": forward, "nodes": len(training.nodes),
        "seconds": statistics.median(seconds[False]), "processor_seconds": statistics.median(processor),
        "with_report_seconds": statistics.median(seconds[True]),
        "mxnet_seconds": mxnet_seconds, "stock_bytes": training.planned_bytes, "bytes": planned.after.planned,
        "overhead": planned.overhead, **cached(graph, planned, binding),
    }  # fmt: skip
    if forward <= LONG_NODES:
        row["long_search_bytes"] = plan(graph, training, made_for, False, LONG_EFFORT).after.planned
    return row


def cached(graph: Graph, planned: Plan, binding: Any) -> dict[str, float]:
    """Seconds, also of the processor, that a bind spends on a plan on disk, from the graph and its shapes on."""
    import mxnet as mx

    from echo.passes.variant import PlanResult
    from echo.planning import plan_cache
    from echo.runtime import bind_plan

    bound = graph.with_attrs({mark.node: mark.attrs for mark in planned.marks})
    found: list[float] = []
    processor: list[float] = []
    gc.collect()
    gc.freeze()  # a second start has no training graph around, among which to look for garbage
    gc.enable()
    with _empty_cache(), mock.patch("echo.pipeline.plan", return_value=PlanResult(planned, bound, graph, None)):
        for round_number in range(2 * ROUNDS + 1):
            bind_plan.PLANNER.forget()
            back = None  # nor a plan of before, which would have to be freed
            plan_cache._source.cache_clear()
            before, started = time.process_time(), time.perf_counter()
            back = bind_plan.PLANNER.plan(
                bind_plan.framework_of(graph, lambda: binding, mx.cpu()), Options(), details=False
            ).plan
            if round_number:  # the first one writes it
                found.append(time.perf_counter() - started)
                processor.append(time.process_time() - before)
            assert back == planned
    gc.disable()
    return {"cached_seconds": statistics.median(found), "cached_processor_seconds": statistics.median(processor)}


@contextmanager
def _empty_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", ECHO_CACHE_DIR=folder):
        yield


def slope(rows: Sequence[Mapping[str, Any]]) -> float:
    """How seconds grow with nodes: the exponent of the power law that fits best."""
    x = [math.log(row["forward_nodes"]) for row in rows]
    y = [math.log(row["processor_seconds"]) for row in rows]
    middle = statistics.mean(x), statistics.mean(y)
    return sum((a - middle[0]) * (b - middle[1]) for a, b in zip(x, y)) / sum((a - middle[0]) ** 2 for a in x)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Seconds over nodes, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4.5))
    for name in STEPS:
        mine = [row for row in rows if row["network"] == name]
        nodes = [row["forward_nodes"] for row in mine]
        line = axes.loglog(nodes, [row["processor_seconds"] for row in mine], "o-", label=f"{name}, planning")[0]
        cached_seconds = [row["cached_processor_seconds"] for row in mine]
        axes.loglog(nodes, cached_seconds, "s--", color=line.get_color(), label=f"{name}, plan on disk")
    ends = [min(row["forward_nodes"] for row in rows), max(row["forward_nodes"] for row in rows)]
    axes.loglog(ends, [5e-5 * end for end in ends], ":", color="grey", label="linear")
    axes.set(xlabel="forward nodes", ylabel="seconds", title="Planning")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures all sizes, and says whether the project's own bars are met."""
    parser(__doc__).parse_args()
    rows = []
    for name, lengths in STEPS.items():
        for steps in lengths:
            row = apart("planning_time", "measure", name, str(steps))
            rows.append(row)
            print(
                f"{name}, {row['forward_nodes']} forward nodes: {row['seconds']:.2f} s ({row['processor_seconds']:.2f} "
                f"of the processor), with the report "
                f"{row['with_report_seconds']:.2f} s, cached {1e3 * row['cached_seconds']:.0f} ms "
                f"({1e3 * row['cached_processor_seconds']:.0f} of the processor), MXNet "
                f"{row['mxnet_seconds']:.1f} s; {row['stock_bytes'] / 1e6:.1f} MB -> {row['bytes'] / 1e6:.1f} MB",
                flush=True,
            )
    by_network = {name: [row for row in rows if row["network"] == name] for name in STEPS}
    figures = {
        "10,000 nodes, s": max(found[2]["processor_seconds"] for found in by_network.values()),
        "100,000 nodes, s": max(found[4]["processor_seconds"] for found in by_network.values()),
        # below 10,000 nodes the search takes the same time for all, which would hide how it grows
        "slope": max(slope(found[first:]) for found in by_network.values() for first in (0, 2)),
        "cached at 10,000 nodes, s": max(found[2]["cached_processor_seconds"] for found in by_network.values()),
    }
    for name, figure in figures.items():
        print(f"{name}: {figure:.3f}, at most {BARS[name]} wanted: {'met' if figure <= BARS[name] else 'MISSED'}")
    draw(rows, RESULTS / "planning_time.png")
    print("written:", save("planning_time", rows).name)


if __name__ == "__main__":
    main()
