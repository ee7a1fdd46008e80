"""``mxecho profile``, ``compare`` and ``diff``: where the memory of a training step goes, without echo and with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

import typer

from echo.cli.arguments import (
    Annotated,
    Json,
    MaxOverhead,
    MaxPlanning,
    MemoryBudget,
    NoFuse,
    OptimizerStates,
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
    from echo.report.profile import Profile

_EVERYTHING = ("mirror", "echo")  # what stands alongside the original graph


SymbolOrProfile = Annotated[
    str, typer.Argument(metavar="SYMBOL", help="A symbol saved by MXNet; or, without shapes, a saved profile.")
]
ProfileFile = Annotated[str, typer.Argument(help="A profile saved by `mxecho profile --save` or Profile.save().")]
PerhapsShapes = Annotated[
    Optional[List[str]], typer.Argument(metavar="[NAME=SHAPE...]", help="Shapes of inputs, as data=128,50.")
]
Compare = Annotated[str, typer.Option(metavar="NAMES", help="What stands beside the symbol's own graph: echo,mirror.")]
Run = Annotated[bool, typer.Option("--run", help="Also take two steps of each graph, and measure them.")]
Budgets = Annotated[int, typer.Option(metavar="N", help="Also plan for N memory budgets.")]
By = Annotated[
    Optional[str], typer.Option(metavar="REGEX", help="Group arrays by what this finds in names, not by layers.")
]
Html = Annotated[Optional[str], typer.Option(metavar="FILE", help="Write a page with charts, which needs no network.")]
Picture = Annotated[Optional[str], typer.Option(metavar="FILE", help="Write a picture, FILE.png or FILE.svg.")]
SegmentPicture = Annotated[
    Optional[str], typer.Option("--segment", metavar="FILE", help="Draw one segment of the plan, FILE.png or FILE.svg.")
]
Trace = Annotated[
    Optional[str], typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev and chrome://tracing.")
]
TorchSnapshot = Annotated[
    Optional[str], typer.Option(metavar="FILE", help="Write a snapshot for PyTorch's memory_viz.")
]
Title = Annotated[str, typer.Option(metavar="TEXT", help="The model's name, for pages and pictures.")]


def profile(
    symbol: SymbolOrProfile,
    shapes: PerhapsShapes = None,
    compare: Compare = "echo",
    max_overhead: MaxOverhead = "auto",
    memory_budget: MemoryBudget = None,
    max_planning: MaxPlanning = "10",
    optimizer_states: OptimizerStates = 0,
    no_fuse: NoFuse = False,
    run: Run = False,
    budgets: Budgets = 0,
    by: By = None,
    save: Save = None,
    html: Html = None,
    picture: Picture = None,
    segment: SegmentPicture = None,
    trace: Trace = None,
    torch_snapshot: TorchSnapshot = None,
    title: Title = "",
    as_json: Json = False,
) -> None:
    """Say where the memory of a training step goes.

    \b
    Examples:
      mxecho profile model-symbol.json data=128,50 softmax_label=128,50 --by '^(encoder|decoder)'
      mxecho profile model-symbol.json data=128,50 --run --budgets 8 --save profile.json --html page.html
      mxecho profile profile.json --picture memory.svg --segment segment.svg --trace trace.json
    """
    _check_pictures(picture, segment)
    _layer(by)
    check_folders(save, html, picture, segment, trace, torch_snapshot)  # before anything is planned
    options = {
        **bounds_of(max_overhead, memory_budget, max_planning), "optimizer_states": optimizer_states,
        "fuse": not no_fuse, "run": run, "budgets": budgets,
    }  # fmt: skip
    profiled = _profile_or_saved(symbol, shapes, compare, options)
    title = title or Path(symbol).stem
    _export(profiled, title, save, segment, trace, torch_snapshot)
    _show(profiled, by, html, picture, title, as_json)


def _check_pictures(*paths: Optional[str]) -> None:
    from echo.report.pages import ending_of

    for path in filter(None, paths):
        ending_of(path)


def _profile_or_saved(symbol: str, shapes: Optional[List[str]], compare: str, options: Dict[str, Any]) -> "Profile":
    if shapes:
        return _profile(symbol, shapes, [name for name in compare.split(",") if name], options)
    _check_no_planning({**options, "compare": compare})
    return _saved(symbol)


def _check_no_planning(options: Dict[str, Any]) -> None:
    """Refuses, for a profile that was saved, the options of those that are made again; they would change nothing."""
    defaults = {
        "compare": "echo", "max_overhead": "auto", "memory_budget": None, "max_planning": 10.0,
        "optimizer_states": 0, "fuse": True, "run": False, "budgets": 0,
    }  # fmt: skip
    changed = [name for name, value in options.items() if value != defaults[name]]
    if changed:
        option = "--no-fuse" if changed[0] == "fuse" else f"--{changed[0].replace('_', '-')}"
        raise OptionError(f"{option} is for a symbol: expected shapes of its inputs, as data=128,50")


def _export(
    profiled: "Profile",
    title: str,
    save: Optional[str],
    segment: Optional[str],
    trace: Optional[str],
    torch_snapshot: Optional[str],
) -> None:
    if save:
        profiled.save(save)
    if segment:
        from echo.report.pages import save_segment

        save_segment(profiled, segment, title)
    if trace:
        from echo.report.export import save_trace

        save_trace(profiled, trace)
    if torch_snapshot:
        from echo.report.export import save_torch_snapshot

        save_torch_snapshot(profiled, torch_snapshot)


def _profile(symbol: str, shapes: List[str], names: Sequence[str], options: Dict[str, Any]) -> "Profile":
    import echo
    from echo.frontend.symbols import load_symbol

    loaded = load_symbol(Path(symbol))
    return echo.profile(loaded, compare=names, **options, shapes=shapes_of(loaded, shapes))


def _show(
    profiled: "Profile", by: Optional[str], html: Optional[str], picture: Optional[str], title: str, as_json: bool
) -> None:
    from echo.report.pages import save_page, save_picture
    from echo.report.text import render

    layer = _layer(by)
    if html:
        save_page(profiled, html, title, layer)
    if picture:
        save_picture(profiled, picture, title, layer)
    if as_json:
        print_json(profiled.to_json())
    else:
        say(render(profiled, layer))


def diff(before: ProfileFile, after: ProfileFile, by: By = None, as_json: Json = False) -> None:
    """Set two saved profiles side by side: what grew, and what shrank.

    \b
    Examples:
      mxecho diff before.json after.json
      mxecho diff before.json after.json --by '^(encoder|decoder)'
    """
    from echo.report.diff import difference, rows

    profiles = _saved(before), _saved(after)
    if as_json:
        print_json(rows(*profiles, _layer(by)))
    else:
        say(difference(*profiles, _layer(by)))


def _saved(path: str) -> "Profile":
    from echo.report.profile import Profile

    return Profile.load(path)


def _layer(by: Optional[str]) -> Any:
    """How arrays are grouped: by what the expression finds in their names, or by their layers."""
    from echo.report.usage import layer_by, layer_of

    return layer_by(by) if by else layer_of


def compare(
    symbol: SymbolFile,
    shapes: Shapes,
    max_overhead: MaxOverhead = "auto",
    memory_budget: MemoryBudget = None,
    max_planning: MaxPlanning = "10",
    optimizer_states: OptimizerStates = 0,
    no_fuse: NoFuse = False,
    as_json: Json = False,
) -> None:
    """Set stock MXNet, its own recomputation, and echo side by side.

    MXNet's own recomputation is MXNET_BACKWARD_DO_MIRROR=1, whose time is not predicted.

    \b
    Examples:
      mxecho compare model-symbol.json data=128,50 softmax_label=128,50
      mxecho compare model-symbol.json data=32,3,224,224 --max-overhead 0.05 --json
    """
    from echo.cli.tables import compared, render_comparison

    options = {
        **bounds_of(max_overhead, memory_budget, max_planning),
        "optimizer_states": optimizer_states,
        "fuse": not no_fuse,
    }
    profiled = _profile(symbol, shapes, _EVERYTHING, options)
    if as_json:
        print_json(compared(profiled))
    else:
        say(render_comparison(profiled))
