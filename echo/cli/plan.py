"""``mxecho plan``, ``show`` and ``why``: a plan for a saved symbol, and what it decided."""

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional

import typer

from echo.cli.words import (
    Annotated,
    Json,
    MaxOverhead,
    MemoryBudget,
    NoFuse,
    OptimizerStates,
    PlanFile,
    PolicyName,
    Save,
    Shapes,
    SymbolFile,
    bounds_of,
    check_folders,
    print_json,
    say,
    shapes_of,
)
from echo.errors import OptionError

if TYPE_CHECKING:
    from echo.plans.plan import Plan


class Fuse(str, Enum):
    """The values of ``--fuse``."""

    memory = "memory"


Keep = Annotated[
    Optional[List[str]], typer.Option(metavar="PATTERN", help="Nodes or operators to stash; may be repeated.")
]
Recompute = Annotated[Optional[List[str]], typer.Option(metavar="PATTERN", help="Nodes to recompute; may be repeated.")]
FuseWhere = Annotated[Optional[Fuse], typer.Option(help="Fused kernels where they are slower, too.")]
Trace = Annotated[
    Optional[str], typer.Option(metavar="FOLDER", help="Write down what each stage gave, as ECHO_TRACE does.")
]
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

    Prints memory before and after, the time that recomputation takes, and decisions with their reasons.

    \b
    Examples:
      mxecho plan model-symbol.json data=128,50 softmax_label=128,50
      mxecho plan model-symbol.json data=32,3,224,224 --max-overhead none --save plan.json
      mxecho plan model-symbol.json data=32,3,224,224 --memory-budget 6GB --why stage1_relu
    """
    check_folders(save, netron)
    options = {
        "policy": policy, "keep": keep or (), "recompute": recompute or (), "fuse": _fused(fuse, no_fuse),
        "optimizer_states": optimizer_states, **bounds_of(max_overhead, memory_budget),
    }  # fmt: skip
    loaded = _symbol(symbol) if trace or netron or why else None  # which take more than the plan
    found = _asked(symbol, shapes, options) if loaded is None else _plan(loaded, shapes, trace, options)
    answers = _answers(found, why or ())
    if save:
        found.save(save)
    if netron:
        _write_netron(loaded, found, netron)
    _say(found, answers, as_json)


def _say(found: "Plan", answers: List[Any], as_json: bool) -> None:
    if as_json:
        print_json({**found.to_json(), **({"why": list(map(dataclasses.asdict, answers))} if answers else {})})
    else:
        say("\n".join(map(str, [found, *answers])))


def _fused(fuse: Optional[Fuse], no_fuse: bool) -> "bool | str":
    """The option ``fuse`` of `echo.plan`."""
    if fuse and no_fuse:
        raise OptionError(f"expected --no-fuse or --fuse {fuse.value}, got both")
    return fuse.value if fuse else not no_fuse


def _symbol(path: str) -> Any:
    from echo.frontend.files import load_symbol

    return load_symbol(Path(path))


def _plan(symbol: Any, shapes: List[str], trace: Optional[str], options: Dict[str, Any]) -> "Plan":
    import echo
    from echo.passes.trace import tracing

    with tracing(trace or ""):
        return echo.plan(symbol, **{**options, **shapes_of(symbol, shapes)})


def _asked(symbol: str, shapes: List[str], options: Dict[str, Any]) -> "Plan":
    """The plan, without MXNet where the same was asked before."""
    from echo.planning import asked

    words = [json.dumps(options), *sorted(shapes)]
    name = asked.name_of(Path(symbol), words)
    found = asked.answer(name)
    if found is None:
        found = _plan(_symbol(symbol), shapes, None, options)
        if asked.name_of(Path(symbol), words) == name:  # the file was not exchanged meanwhile
            asked.remember(name, found)
    return found


def _write_netron(symbol: Any, found: "Plan", path: str) -> None:
    from echo.report.netron import annotated

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
        print_json(found.to_json())
    else:
        say(found)


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
