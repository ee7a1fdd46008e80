"""``mxecho plan``, ``show``, ``why``, ``frontier`` and ``schedule``."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set

import typer

from echo.cli.arguments import (
    Annotated,
    FuseWhere,
    Json,
    Keep,
    MaxOverhead,
    MaxPlanning,
    MemoryBudget,
    NoFuse,
    OptimizerStates,
    PlanFile,
    PolicyName,
    Recompute,
    Save,
    Shapes,
    SymbolFile,
    Trace,
    bounds_of,
    check_folders,
    fused,
    number_of,
    print_json,
    say,
    shapes_of,
)
from echo.errors import BudgetError, OptionError, did_you_mean
from echo.system.terminal import size_text

if TYPE_CHECKING:
    from echo.ir.training_graph import TrainingGraph
    from echo.plans.plan import Plan
    from echo.policies.data_graph import DataGraph, Solved
    from echo.policies.problem import Policy


# ``mxecho plan``, ``show`` and ``why``: a plan for a saved symbol, and its decisions.

Netron = Annotated[
    Optional[str], typer.Option(metavar="FILE", help="Write the symbol with the plan on its nodes, for Netron.")
]
WhyNames = Annotated[Optional[List[str]], typer.Option(metavar="NAME", help="Explain a feature map; may be repeated.")]


def plan(
    symbol: SymbolFile,
    shapes: Shapes,
    policy: PolicyName = "search",
    max_overhead: MaxOverhead = "auto",
    memory_budget: MemoryBudget = None,
    max_planning: MaxPlanning = "10",
    optimizer_states: OptimizerStates = 0,
    keep: Keep = None,
    recompute: Recompute = None,
    no_fuse: NoFuse = False,
    fuse: FuseWhere = None,
    save: Save = None,
    trace: Trace = None,
    netron: Netron = None,
    why: WhyNames = None,
    as_json: Json = False,
) -> None:
    """Plan a saved symbol, and explain the plan.

    Prints memory before and after, the time that recomputation takes, and decisions with their reasons; and on a CPU
    the predicted peak of a process that trains the symbol with Module.

    \b
    Examples:
      mxecho plan model-symbol.json data=128,50 softmax_label=128,50
      mxecho plan model-symbol.json data=32,3,224,224 --max-overhead none --save plan.json
      mxecho plan model-symbol.json data=32,3,224,224 --memory-budget 6GB --why stage1_relu
    """
    check_folders(save, netron)
    options = {
        "policy": policy, "keep": keep or (), "recompute": recompute or (), "fuse": fused(fuse, no_fuse),
        "optimizer_states": optimizer_states, **bounds_of(max_overhead, memory_budget, max_planning),
    }  # fmt: skip
    loaded = _symbol(symbol)
    _check_names(loaded, why or ())
    found = _plan(loaded, shapes, trace, options)
    _save(found, loaded, save, netron)  # first: a name that is no feature map must not cost the plan
    _print(found, [found.why(name) for name in why or ()], as_json)


def _check_names(symbol: Any, names: Sequence[str]) -> None:
    """Raises `OptionError` for a name that no node of the symbol has, before anything is planned."""
    if not names:
        return
    nodes = [node["name"] for node in json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]]
    for name in names:
        origin = name.partition("_echo")[0]  # nodes that echo makes begin with the name of a node that they replace
        if not {name, origin, name.rpartition(":")[0]} & set(nodes):
            question = did_you_mean(name, nodes)
            raise OptionError(f"--why {name}: the symbol has no node of this name{'; ' if question else ''}{question}")


def _print(found: "Plan", answers: Sequence[Any], as_json: bool) -> None:
    """Prints a plan, the predicted peak of a process that trains by it (on CPUs), and the answers of `Plan.why`."""
    from echo.report.foreseen import lines, of_symbol

    process = of_symbol(found)
    if as_json:
        value = {**found.to_json(), "process_peak": process and process.to_json()}
        print_json({**value, **({"why": list(map(dataclasses.asdict, answers))} if answers else {})})
    else:
        say("\n".join(map(str, [found, *lines(found, process), *answers])))


def _symbol(path: str) -> Any:
    from echo.frontend.symbols import load_symbol

    return load_symbol(Path(path))


def _plan(symbol: Any, shapes: List[str], trace: Optional[str], options: Dict[str, Any]) -> "Plan":
    import echo
    from echo.passes.pass_manager import tracing

    with tracing(trace or ""):
        return echo.plan(symbol, **options, shapes=shapes_of(symbol, shapes))


def _save(found: "Plan", symbol: Any, save: Optional[str], netron: Optional[str]) -> None:
    if save:
        found.save(save)
    if netron:
        from echo.report.export import annotated

        value = annotated(json.loads(symbol.tojson(remove_amp_cast=False)), found)
        Path(netron).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def show(file: PlanFile, as_json: Json = False) -> None:
    """Print a saved plan.

    \b
    Examples:
      mxecho show plan.json
    """
    _print(_load(file), (), as_json)


def why(
    file: PlanFile,
    names: Annotated[List[str], typer.Argument(metavar="NAME...", help="A node, or NODE:OUTPUT.")],
    as_json: Json = False,
) -> None:
    """Explain why feature maps are stashed or recomputed.

    Only `mxecho plan --why NAME` also states the cost of the opposite.

    \b
    Examples:
      mxecho why plan.json encoder_l0_tanh
    """
    plan = _load(file)
    answers = [plan.why(name) for name in names]
    if as_json:
        print_json([dataclasses.asdict(answer) for answer in answers])
    else:
        say("\n".join(map(str, answers)))


def _load(file: str) -> "Plan":
    from echo.plans.plan import Plan

    return Plan.load(file)


# ``mxecho frontier``: plans for several memory budgets.


def frontier(
    symbol: SymbolFile,
    shapes: Shapes,
    budgets: Annotated[int, typer.Option(metavar="N", help="How many memory budgets, 2 to 100.")] = 10,
    policy: PolicyName = "search",
    max_planning: MaxPlanning = "10",
    no_fuse: NoFuse = False,
    as_json: Json = False,
) -> None:
    """Show the gain of other memory budgets: memory against time.

    Plans go from the least memory that can be reached to that of stock MXNet; each takes `--max-planning` seconds at
    most. Budgets count everything that the executor holds. Plans that need more memory and more time than another are
    left out.

    \b
    Examples:
      mxecho frontier model-symbol.json data=128,50 softmax_label=128,50 --budgets 8
    """
    import echo

    loaded = _symbol(symbol)
    options = {"policy": policy, "fuse": not no_fuse, "max_planning": number_of("--max-planning", max_planning)}
    found = echo.frontier(loaded, budgets=budgets, **options, shapes=shapes_of(loaded, shapes))
    if as_json:
        print_json(found.to_json())
    else:
        say(found)


# ``mxecho schedule``: a training graph of any framework within a memory budget.

_SCHEDULING = 60.0  # seconds that a schedule may take
_MOST_HELD = 5  # maps that an error names


def schedule(
    graph: Annotated[
        str, typer.Argument(metavar="GRAPH", help="A training step as JSON: nodes with costs, bytes, dependencies.")
    ],
    budget: Annotated[
        str,
        typer.Option(metavar="VALUE", help='Bytes, "5GB", or a part of the memory without recomputation: "50%", 0.5.'),
    ],
    policy: PolicyName = "search",
    as_json: Json = False,
) -> None:
    """Schedule a training graph of any framework.

    It stays within a memory budget, and takes as little time for recomputation as the policy finds.

    \b
    Examples:
      mxecho schedule graph.json --budget 5GB
      mxecho schedule graph.json --budget 0.5 --policy ilp --json
    """
    from echo.policies import policy_of
    from echo.policies.data_graph import load_dag

    chosen, loaded = policy_of(policy), load_dag(Path(graph))
    limit = _bytes_of(budget, loaded.training.planned_bytes)
    solved = _within(chosen, loaded, limit)
    if as_json:
        print_json(as_value(loaded, chosen.name, limit, solved))
    else:
        say(render_schedule(loaded, chosen.name, limit, solved))


def _bytes_of(budget: str, without: int) -> int:
    """The budget in bytes, where ``without`` are those of the graph without recomputation."""
    from echo.plans.options import budget_bytes

    amount = number_of("--memory-budget", budget)
    try:
        return budget_bytes("none" if amount is None else amount, without)
    except OptionError:
        raise OptionError(
            f"--budget: expected whole bytes, a size such as 5GB, or a fraction such as 0.5 or 50%, got {budget!r}"
        ) from None


def _within(policy: "Policy", graph: "DataGraph", limit: int) -> "Solved":
    """Returns the schedule that the policy finds within a budget in bytes."""
    from echo.policies.data_graph import solve_graph
    from echo.system.process import Deadline

    deadline = Deadline.after(_SCHEDULING)
    solved = solve_graph(policy, *graph, max_bytes=limit, deadline=deadline)
    if solved.value.bytes > limit:
        late = f" within {_SCHEDULING:g} s" if deadline.is_over else ""
        raise BudgetError(
            limit, solved.planned_bytes, held_at_peak(graph.training, solved), f" by policy {policy.name!r}{late}"
        )
    return solved


def as_value(graph: "DataGraph", policy: str, budget: int, solved: "Solved") -> Dict[str, Any]:
    """Peak, overhead and recomputed nodes as a JSON value; bytes are live bytes."""
    from echo.ir.ops import is_heavy_in_torch
    from echo.ir.schedule import steps_of

    training, seconds = graph
    runs = Counter(run.node for run in steps_of(training, solved.splits) if run.node != run.position)
    return {
        "policy": policy,
        "nodes": len(training.nodes),
        "forward_nodes": sum(node.forward for node in training.nodes),
        "step_seconds": sum(seconds),
        "stock_bytes": training.planned_bytes,
        "peak_bytes": solved.value.bytes,
        "budget_bytes": budget,
        "overhead_seconds": solved.value.seconds,
        "recomputed_nodes": len(runs),
        "recomputed_heavy_nodes": sum(is_heavy_in_torch(training.nodes[number].op) for number in runs),
        "recomputations": sum(runs.values()),
    }


def render_schedule(graph: "DataGraph", policy: str, budget: int, solved: "Solved") -> str:
    """The schedule in four lines of text."""
    value = as_value(graph, policy, budget, solved)
    step, again = value["step_seconds"], value["overhead_seconds"]
    before, after = size_text(value["stock_bytes"]), size_text(value["peak_bytes"])
    heavy = f"{value['recomputed_heavy_nodes']} of them heavy, in {value['recomputations']} runs"
    return "\n".join([
        f"graph       {value['nodes']} nodes, {value['forward_nodes']} of them forward, {1000 * step:.2f} ms a step",
        f"peak        {before} -> {after}, budget {size_text(budget)} ({policy})",
        f"overhead    {100 * again / max(step, 1e-12):+.2f} %, {1000 * again:.2f} ms",
        f"recomputed  {value['recomputed_nodes']} nodes, {heavy}",
    ])  # fmt: skip


def held_at_peak(training: "TrainingGraph", solved: "Solved") -> str:
    """The largest maps in memory at the step with the most live bytes, as a text."""
    from echo.ir.schedule import steps_of

    order = [step.node for step in steps_of(training, solved.splits)]
    alive = max(_alive(training, order), key=lambda nodes: sum(_bytes(training, number) for number in nodes))
    largest = sorted(alive, key=lambda number: (-_bytes(training, number), number))[:_MOST_HELD]
    return ", ".join(f"{training.nodes[number].name} {size_text(_bytes(training, number))}" for number in largest)


def _bytes(training: "TrainingGraph", number: int) -> int:
    return training.nodes[number].outputs[0].bytes


def _alive(training: "TrainingGraph", order: Sequence[int]) -> List[List[int]]:
    """By step, the nodes whose latest values are in memory."""
    needed: Set[int] = set()
    alive_by_step = []
    for number in reversed(order):  # a value is alive from when it is made to when it is read for the last time
        needed.update(entry.node for entry in training.nodes[number].inputs)
        alive_by_step.append(sorted(needed | {number}))
        needed.discard(number)
    return alive_by_step[::-1]
