"""``mxecho plan`` and ``mxecho frontier``."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

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
from echo.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from echo.plans.plan import Plan


# ``mxecho plan``, ``show`` and ``why``: a plan for a saved symbol, and what it decided.

Netron = Annotated[
    Optional[str], typer.Option(metavar="FILE", help="Write the symbol with the plan on its nodes, to look at.")
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
    _keep(found, loaded, save, netron)  # first: a name that is no feature map must not cost the plan
    _say(found, _answers(found, why or ()), as_json)


def _keep(found: "Plan", symbol: Any, save: Optional[str], netron: Optional[str]) -> None:
    if save:
        found.save(save)
    if netron:
        _write_netron(symbol, found, netron)


def _check_names(symbol: Any, names: Sequence[str]) -> None:
    """Raises `OptionError` for a name that no node of the symbol has, before anything is planned."""
    if not names:
        return
    nodes = [node["name"] for node in json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]]
    for name in names:
        origin = name.partition("_echo")[0]  # nodes that echo makes have the name of one that they stand for first
        if not {name, origin, name.rpartition(":")[0]} & set(nodes):
            question = did_you_mean(name, nodes)
            raise OptionError(f"--why {name}: the symbol has no node of this name{'; ' if question else ''}{question}")


def _say(found: "Plan", answers: List[Any], as_json: bool) -> None:
    if as_json:
        print_json({**_values(found), **({"why": list(map(dataclasses.asdict, answers))} if answers else {})})
    else:
        say("\n".join(map(str, [found, *_process(found), *answers])))


def _values(found: "Plan") -> Dict[str, Any]:
    """What the plan file has, and "process_peak": bytes by part without and with echo, None on a GPU."""
    from echo.report.foreseen import of_symbol

    process = of_symbol(found)
    return {**found.to_json(), "process_peak": process and process.to_json()}


def _process(found: "Plan") -> List[str]:
    """The predicted peak of the process, and its parts."""
    from echo.report.foreseen import lines, of_symbol

    return list(lines(found, of_symbol(found)))


def _symbol(path: str) -> Any:
    from echo.frontend.symbols import load_symbol

    return load_symbol(Path(path))


def _plan(symbol: Any, shapes: List[str], trace: Optional[str], options: Dict[str, Any]) -> "Plan":
    import echo
    from echo.passes.pass_manager import tracing

    with tracing(trace or ""):
        return echo.plan(symbol, **options, shapes=shapes_of(symbol, shapes))


def _write_netron(symbol: Any, found: "Plan", path: str) -> None:
    from echo.report.export import annotated

    value = json.loads(symbol.tojson(remove_amp_cast=False))
    Path(path).write_text(json.dumps(annotated(value, found), indent=1) + "\n", encoding="utf-8")


def show(file: PlanFile, as_json: Json = False) -> None:
    """Print a plan that was saved before.

    \b
    Examples:
      mxecho show plan.json
    """
    found = _load(file)
    if as_json:
        print_json(_values(found))
    else:
        say("\n".join(map(str, [found, *_process(found)])))


def why(
    file: PlanFile,
    names: Annotated[List[str], typer.Argument(metavar="NAME...", help="A node, or NODE:OUTPUT.")],
    as_json: Json = False,
) -> None:
    """Say why feature maps are stashed or recomputed.

    What the opposite would cost is known to `mxecho plan --why NAME` alone.

    \b
    Examples:
      mxecho why plan.json encoder_l0_tanh
    """
    answers = _answers(_load(file), names)
    if as_json:
        print_json([dataclasses.asdict(answer) for answer in answers])
    else:
        say("\n".join(map(str, answers)))


def _load(file: str) -> "Plan":
    from echo.plans.plan import Plan

    return Plan.load(file)


def _answers(found: "Plan", names: Any) -> List[Any]:
    return [found.why(name) for name in names]


# ``mxecho frontier``: what other memory budgets buy.


def frontier(
    symbol: SymbolFile,
    shapes: Shapes,
    budgets: Annotated[int, typer.Option(metavar="N", help="How many memory budgets, 2 to 100.")] = 10,
    policy: PolicyName = "search",
    max_planning: MaxPlanning = "10",
    no_fuse: NoFuse = False,
    as_json: Json = False,
) -> None:
    """Say what other memory budgets buy: memory against time.

    Plans go from the least memory that can be reached to that of stock MXNet; each takes `--max-planning` seconds at
    most. Budgets count all that the executor holds. Plans that need more memory and more time than another are left
    out.

    \b
    Examples:
      mxecho frontier model-symbol.json data=128,50 softmax_label=128,50 --budgets 8
    """
    import echo
    from echo.frontend.symbols import load_symbol

    symbol_of_file = load_symbol(Path(symbol))
    shapes_by_name = shapes_of(symbol_of_file, shapes)
    options = {"policy": policy, "fuse": not no_fuse, "max_planning": number_of("--max-planning", max_planning)}
    curve_of_plans = echo.frontier(symbol_of_file, budgets=budgets, **options, shapes=shapes_by_name)
    if as_json:
        print_json(curve_of_plans.to_json())
    else:
        say(curve_of_plans)
