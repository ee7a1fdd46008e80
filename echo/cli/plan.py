"""``mxecho plan`` and ``mxecho schedule``."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set

import typer

from echo.cli.arguments import (
    Annotated,
    Dump,
    Json,
    OldTrace,
    PerhapsShapes,
    PolicyName,
    Save,
    check_folders,
    check_order,
    check_unused,
    make_folder,
    options_of,
    print_json,
    say,
    shapes_of,
    takes_options,
)
from echo.errors import BudgetError, EchoError, OptionError, did_you_mean
from echo.system.terminal import size_text

if TYPE_CHECKING:
    from echo.ir.training_graph import TrainingGraph
    from echo.plans.plan import Plan
    from echo.policies.data_graph import DataGraph, Solved
    from echo.policies.problem import Policy


# ``mxecho plan``: a plan for a saved symbol, or a saved plan, and its decisions.

Symbol = Annotated[
    Optional[str],
    typer.Argument(metavar="[SYMBOL]", help="A symbol saved by MXNet 1.x, as model-symbol.json.", show_default=False),
]
Netron = Annotated[
    Optional[str], typer.Option(metavar="FILE", help="Write the symbol with the plan on its nodes, for Netron.")
]
WhyNames = Annotated[
    Optional[List[str]],
    typer.Option(metavar="NAME", help="Only explain a feature map: a node, or NODE:OUTPUT; may be repeated."),
]
Load = Annotated[
    Optional[str], typer.Option(metavar="FILE", help="Print a plan from `--save` or Plan.save() instead of planning.")
]
Diff = Annotated[
    Optional[str], typer.Option(metavar="PLAN", help="Only show the changes from this plan to a saved one.")
]


@takes_options("plan", "verify")
def plan(
    symbol: Symbol = None,
    shapes: PerhapsShapes = None,
    save: Save = None,
    dump: Dump = None,
    trace: OldTrace = None,
    netron: Netron = None,
    why: WhyNames = None,
    load: Load = None,
    diff: Diff = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Plan a saved symbol, and explain the plan.

    Prints memory, time, decisions with reasons, and on a CPU the predicted peak of a process that trains by Module.

    \b
    Examples:
      mxecho plan model-symbol.json data=128,50 softmax_label=128,50
      mxecho plan model-symbol.json data=32,3,224,224 --memory-budget 6GB --save plan.json --why stage1_relu
      mxecho plan --load plan.json --diff other.json
    """
    options, files = options_of(flags), {"save": save, "dump": dump, "netron": netron}
    other = _other(diff, why)
    found = _saved(load, symbol, {**flags, **files}) if load else _made(symbol, shapes, why or (), options, **files)
    _print(found, [found.why(name) for name in why or ()], other, as_json)


def _made(
    path: Optional[str],
    shapes: Optional[List[str]],
    why: Sequence[str],
    options: Dict[str, Any],
    save: Optional[str],
    dump: Optional[str],
    netron: Optional[str],
) -> "Plan":
    """Returns a plan for a symbol; it is saved before a name that is no feature map can cost it."""
    if path is not None:
        check_order(path)
    if path is None or not shapes:
        raise OptionError(
            "expected a symbol and shapes of its inputs, as model-symbol.json data=128,50, or --load FILE"
        )
    import echo
    from echo.frontend.symbols import load_symbol
    from echo.passes.pass_manager import dumping

    check_folders(save, netron)
    make_folder("--dump", dump)
    symbol = load_symbol(Path(path))
    _check_names(symbol, why)
    with dumping(dump or ""):
        found: Plan = echo.plan(symbol, **options, shapes=shapes_of(symbol, shapes))
    _save(found, symbol, save, netron)
    return found


def _saved(file: str, symbol: Optional[str], flags: Dict[str, Any]) -> "Plan":
    """Returns a saved plan; raises `OptionError` for words and options that are for a symbol."""
    from echo.plans.plan import Plan

    if symbol is not None:
        raise OptionError(f"--load: expected no symbol next to a saved plan, got {symbol!r}")
    check_unused(flags, "is for a symbol, not for a saved plan (--load)")
    return Plan.load(file)


def _other(diff: Optional[str], why: Optional[List[str]]) -> "Optional[Plan]":
    """Returns the plan to compare with, which is read before anything is planned; None without ``--diff``."""
    from echo.plans.plan import Plan

    if diff is not None and why:
        raise OptionError("expected one of --why and --diff, got both")
    return None if diff is None else Plan.load(diff)


def _check_names(symbol: Any, names: Sequence[str]) -> None:
    """Raises `OptionError` for a name that no node of the symbol has, before anything is planned."""
    if not names:
        return
    nodes = [node["name"] for node in json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]]
    for name in names:
        origin = name.partition("_echo")[0]  # nodes that echo makes begin with the name of a node that they replace
        if not {name, origin, name.rpartition(":")[0]} & set(nodes):
            raise OptionError(
                f"--why {name or repr(name)}: the symbol has no node of this name{did_you_mean(name, nodes, '; ')}"
            )


def _print(found: "Plan", answers: Sequence[Any], other: "Optional[Plan]", as_json: bool) -> None:
    """Prints a plan, and the predicted peak of a process that trains by it (on CPUs).

    With answers of `Plan.why`, it prints only these; with another plan, only what differs.
    """
    from echo.plans.difference import difference, difference_rows
    from echo.report.predicted_peaks import lines, of_symbol

    if other is not None:
        print_json(difference_rows(found, other)) if as_json else say(difference(found, other))
        return
    process = of_symbol(found)
    if as_json:
        value = {**found.to_json(), "process_peak": process and process.to_json()}
        print_json({**value, **({"why": list(map(dataclasses.asdict, answers))} if answers else {})})
    else:
        say("\n".join(map(str, answers or [found, *lines(found, process)])))


def _save(found: "Plan", symbol: Any, save: Optional[str], netron: Optional[str]) -> None:
    if save:
        found.save(save)
    if netron:
        from echo.report.export import annotated
        from echo.system.files import write_in_one_step

        value = annotated(json.loads(symbol.tojson(remove_amp_cast=False)), found)
        write_in_one_step(netron, f"{json.dumps(value, indent=1)}\n")


# ``mxecho schedule``: a training graph of any framework within a memory budget.

_SCHEDULING = 60.0  # seconds that a schedule may take
_MOST_HELD = 5  # feature maps that an error names


def schedule(
    graph: Annotated[
        str, typer.Argument(metavar="GRAPH", help="A training step as JSON: nodes with costs, bytes, dependencies.")
    ],
    budget: Annotated[
        str,
        typer.Option(metavar="VALUE", help='Bytes, "5GB", or a part of the memory without recomputation: "50%", 0.5.'),
    ],
    policy: PolicyName = None,
    as_json: Json = False,
) -> None:
    """Schedule a training graph of any framework.

    It stays within a memory budget, and takes as little time for recomputation as the policy finds.

    \b
    Examples:
      mxecho schedule graph.json --budget 5GB
      mxecho schedule graph.json --budget 0.5 --policy ilp --json
    """
    from echo.plans.options import renamed
    from echo.policies import policy_of
    from echo.policies.data_graph import load_dag

    _bytes_of(budget, 1)  # refuses it before the graph is read
    chosen = policy_of(options_of({"policy": policy}).get("policy", "search"))
    loaded = load_dag(Path(graph))
    limit = _bytes_of(budget, loaded.training.planned_bytes)
    try:
        solved = _within(chosen, loaded, limit)
    except BudgetError as error:
        raise EchoError(renamed(str(error.repeating(budget)), {"memory_budget": "--budget"})) from None
    if as_json:
        print_json(as_value(loaded, chosen.name, limit, solved))
    else:
        say(render_schedule(loaded, chosen.name, limit, solved))


def _bytes_of(budget: str, without: int) -> int:
    """The budget in bytes, where ``without`` are those of the graph without recomputation."""
    from echo.plans.options import budget_bytes

    try:
        return budget_bytes(budget, without)
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
    runs = Counter(run.node for run in steps_of(training, solved.schedule) if run.node != run.position)
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
    """The largest feature maps in memory at the step with the most live bytes, as a text."""
    from echo.ir.schedule import steps_of

    order = [step.node for step in steps_of(training, solved.schedule)]
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
