"""``mxecho profile`` and ``mxecho compare``: where the memory of a training step goes, without echo and with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

import typer

from echo.cli.words import (
    Annotated,
    Json,
    MaxOverhead,
    MemoryBudget,
    NoFuse,
    Save,
    Shapes,
    SymbolFile,
    bounds_of,
    print_json,
    shapes_of,
)

if TYPE_CHECKING:
    from echo.report.profile import Profile

_EVERYTHING = ("mirror", "echo")  # what stands beside the user's own graph


SymbolOrProfile = Annotated[
    str, typer.Argument(metavar="SYMBOL", help="A symbol saved by MXNet; or, without shapes, a saved profile.")
]
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
Title = Annotated[str, typer.Option(metavar="TEXT", help="The model's name, for pages and pictures.")]


def profile(
    symbol: SymbolOrProfile,
    shapes: PerhapsShapes = None,
    compare: Compare = "echo",
    max_overhead: MaxOverhead = "auto",
    memory_budget: MemoryBudget = None,
    no_fuse: NoFuse = False,
    run: Run = False,
    budgets: Budgets = 0,
    by: By = None,
    save: Save = None,
    html: Html = None,
    picture: Picture = None,
    title: Title = "",
    as_json: Json = False,
) -> None:
    """Say where the memory of a training step goes.

    Every array has its bytes, its layer and its kind, and lives from one step to another.

    \b
    Examples:
      mxecho profile model-symbol.json data=128,50 softmax_label=128,50 --by '^(encoder|decoder)'
      mxecho profile model-symbol.json data=128,50 --run --budgets 8 --save profile.json --html page.html
      mxecho profile profile.json --picture memory.svg
    """
    import echo

    options = {**bounds_of(max_overhead, memory_budget), "fuse": not no_fuse, "run": run, "budgets": budgets}
    if shapes:
        found = _profile(symbol, shapes, [name for name in compare.split(",") if name], options)
    else:
        found = echo.Profile.load(symbol)
    if save:
        found.save(save)
    _show(found, by, html, picture, title or Path(symbol).stem, as_json)


def _profile(symbol: str, shapes: List[str], names: Sequence[str], options: Dict[str, Any]) -> "Profile":
    import echo
    from echo.frontend.files import load_symbol

    return echo.profile(load_symbol(Path(symbol)), compare=names, **options, **shapes_of(shapes))


def _show(
    found: "Profile", by: Optional[str], html: Optional[str], picture: Optional[str], title: str, as_json: bool
) -> None:
    from echo.report import page
    from echo.report import picture as drawing
    from echo.report.text import render
    from echo.report.usage import layer_by, layer_of

    layer = layer_by(by) if by else layer_of
    if html:
        page.save(found, html, title, layer)
    if picture:
        drawing.save(found, picture, title, layer)
    if as_json:
        print_json(found.to_json())
    else:
        print(render(found, layer))


def compare(
    symbol: SymbolFile,
    shapes: Shapes,
    max_overhead: MaxOverhead = "auto",
    memory_budget: MemoryBudget = None,
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
    from echo.cli.compare_text import render, rows

    options = {**bounds_of(max_overhead, memory_budget), "fuse": not no_fuse}
    found = _profile(symbol, shapes, _EVERYTHING, options)
    if as_json:
        print_json(rows(found))
    else:
        print(render(found))
