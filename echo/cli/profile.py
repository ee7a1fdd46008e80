"""``mxecho profile``: where the memory of a training step goes, without echo, with it, and with other budgets."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import typer

from echo.cli.arguments import (
    Annotated,
    Budgets,
    Json,
    PerhapsShapes,
    Save,
    check_folders,
    check_order,
    check_unused,
    options_of,
    print_json,
    say,
    shapes_of,
    takes_options,
)
from echo.errors import GraphError, OptionError
from echo.system.terminal import megabytes, text_of

if TYPE_CHECKING:
    from echo.report.profile import Profile

_NAMES = {"stock": "stock MXNet", "mirror": "MXNet's mirroring", "echo": "echo"}  # of the graphs of a profile
_BOUNDS = ("memory_budget", "max_overhead", "max_time")  # which a frontier does not take

SymbolOrProfile = Annotated[
    str, typer.Argument(metavar="SYMBOL", help="A symbol saved by MXNet; or, without shapes, a saved profile.")
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Only set stock MXNet, MXNET_BACKWARD_DO_MIRROR=1 (its time is not predicted) and echo side by side.",
    ),
]
Frontier = Annotated[bool, typer.Option("--frontier", help="Only show plans for N memory budgets (--budgets, or 10).")]
Diff = Annotated[
    Optional[str], typer.Option(metavar="PROFILE", help="Only show the changes from this profile to a saved one.")
]
Run = Annotated[bool, typer.Option("--run", help="Also take two steps of each graph, and measure them.")]
By = Annotated[
    Optional[str],
    typer.Option(metavar="REGEX", help="Group arrays by matches in their names instead of by layers."),
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


@takes_options("plan", "verify")
def profile(
    symbol: SymbolOrProfile,
    shapes: PerhapsShapes = None,
    compare: Compare = False,
    frontier: Frontier = False,
    diff: Diff = None,
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
    **flags: Any,
) -> None:
    """Show where the memory of a training step goes.

    \b
    Examples:
      mxecho profile model-symbol.json data=128,50 --run --budgets 8 --save profile.json --html page.html
      mxecho profile profile.json --by '^(encoder|decoder)' --picture memory.svg --trace trace.json
      mxecho profile model-symbol.json data=128,50 softmax_label=128,50 --compare
      mxecho profile before.json --diff after.json
    """
    check_order(symbol)
    options_of(flags)  # refuses what makes no sense
    flags.update(run=run, budgets=budgets, compare=compare)
    files = {"save": save, "html": html, "picture": picture, "segment": segment, "trace": trace,
             "torch_snapshot": torch_snapshot}  # fmt: skip
    _profiled(symbol, shapes or [], flags, files, title, by, frontier, diff, as_json)


def _profiled(
    symbol: str,
    shapes: List[str],
    flags: Dict[str, Any],
    files: Mapping[str, Optional[str]],
    title: str,
    by: Optional[str],
    frontier: bool,
    diff: Optional[str],
    as_json: bool,
) -> None:
    """Profiles a symbol or loads a profile, writes the files, and prints what is asked for."""
    compare = flags["compare"]
    if compare + frontier + (diff is not None) > 1:
        raise OptionError("expected one of --compare, --frontier and --diff, got several")
    _check_files(files)
    if frontier:
        check_unused({"by": by, **files}, "means nothing for --frontier")
        _print_frontier(symbol, shapes, flags, as_json)
        return
    layer = _layer(by)
    profiled = _profile(symbol, shapes, flags) if shapes else _saved_profile(symbol, flags)
    _write(profiled, files, title or (Path(symbol).stem if shapes else ""), layer)  # a saved profile has no name
    _show(profiled, layer, compare, diff, as_json)


def _check_files(files: Mapping[str, Optional[str]]) -> None:
    """Checks the names and folders of files before anything is planned."""
    from echo.report.pages import ending_of

    for path in filter(None, (files["picture"], files["segment"])):
        ending_of(path)
    check_folders(*files.values())


def _layer(by: Optional[str]) -> Any:
    """Returns the function that groups arrays: by the expression's match in their names, or by their layers."""
    from echo.report.usage import layer_by, layer_of

    return layer_by(by) if by else layer_of


def _profile(symbol: str, shapes: List[str], flags: Dict[str, Any]) -> "Profile":
    import echo
    from echo.frontend.symbols import load_symbol

    loaded, run, budgets = load_symbol(Path(symbol)), flags.pop("run"), flags.pop("budgets")
    compare = ("mirror", "echo") if flags.pop("compare") else ("echo",)
    options = {**options_of(flags), "run": run, "budgets": budgets, "compare": compare}
    return echo.profile(loaded, **options, shapes=shapes_of(loaded, shapes))


def _saved_profile(path: str, flags: Dict[str, Any]) -> "Profile":
    """A profile from a file; raises `OptionError` for options that plan, which would change nothing."""
    from echo.frontend.symbols import load_symbol
    from echo.report.profile import Profile

    check_unused(flags, "is for a symbol: expected shapes of its inputs, as data=128,50")
    try:
        return Profile.load(path)
    except GraphError:
        try:
            load_symbol(Path(path))
        except GraphError:
            pass
        else:
            raise OptionError(f"{path} is a symbol: expected shapes of its inputs, as data=128,50") from None
        raise


def _write(profiled: "Profile", files: Mapping[str, Optional[str]], title: str, layer: Any) -> None:
    """Writes the files that have a name."""
    from echo.report import export, pages

    write: Dict[str, Callable[[str], object]] = {
        "save": profiled.save,
        "trace": lambda path: export.save_trace(profiled, path),
        "torch_snapshot": lambda path: export.save_torch_snapshot(profiled, path),
        "segment": lambda path: pages.save_segment(profiled, path, title),
        "html": lambda path: pages.save_page(profiled, path, title, layer),
        "picture": lambda path: pages.save_picture(profiled, path, title, layer),
    }
    for name, save in write.items():
        path = files[name]
        if path:
            save(path)


def _show(profiled: "Profile", layer: Any, compare: bool, diff: Optional[str], as_json: bool) -> None:
    """Prints a profile, or its graphs side by side, or the changes to a saved one."""
    from echo.report.profile import Profile
    from echo.report.text import difference, difference_rows, render

    if compare:
        _print(lambda: compared(profiled), lambda: render_comparison(profiled), as_json)
    elif diff is not None:
        after = Profile.load(diff)
        _print(lambda: difference_rows(profiled, after, layer), lambda: difference(profiled, after, layer), as_json)
    else:
        _print(profiled.to_json, lambda: render(profiled, layer), as_json)


def _print(value: Callable[[], Any], text: Callable[[], object], as_json: bool) -> None:
    if as_json:
        print_json(value())
    else:
        say(text())


def _print_frontier(symbol: str, shapes: Sequence[str], flags: Dict[str, Any], as_json: bool) -> None:
    """Plans for several memory budgets; raises `OptionError` for options that a frontier does not take."""
    import echo
    from echo.frontend.symbols import load_symbol

    if not shapes:
        raise OptionError("--frontier is for a symbol: expected shapes of its inputs, as data=128,50")
    budgets, others = flags.pop("budgets"), {name: flags.pop(name) for name in (*_BOUNDS, "run", "compare")}
    check_unused(others, "means nothing for --frontier, which plans for budgets of its own")
    loaded = load_symbol(Path(symbol))
    found = echo.frontier(loaded, budgets=budgets or 10, **options_of(flags), shapes=shapes_of(loaded, shapes))
    _print(found.to_json, lambda: found, as_json)


def compared(profiled: "Profile") -> List[Dict[str, Any]]:
    """Returns a JSON object a graph: its name, bytes (``planned`` by MXNet, ``total`` held by the executor), and times.

    ``time`` is that of a step as a multiple of the stock step's, ``overhead`` what recomputation adds to a step, as a
    fraction; both are predictions, and None for a graph without one.
    """
    plan = profiled.plan
    times = {"stock": (1.0, 0.0), "echo": (plan.time_ratio, plan.overhead)}
    rows = []
    for name in filter(profiled.usages.__contains__, _NAMES):
        usage, (time, overhead) = profiled.usages[name], times.get(name, (None, None))
        rows.append({"graph": name, "planned": usage.planned, "total": usage.total, "time": time, "overhead": overhead})
    return rows


def render_comparison(profiled: "Profile") -> str:
    """The rows as a table of at most 100 columns, and the remarks of the plan."""
    from echo.plans.text import table_of
    from echo.report.usage import PROCESS

    headings = ["planned, MB", "change", "held by the executor, MB", "change", "predicted time"]
    stock, *others = compared(profiled)
    grown = [profiled.usages[row["graph"]].measured.get(PROCESS) for row in (stock, *others)]
    table = table_of("training with", *headings, *(["measured growth of the process, MB"] if any(grown) else []))
    for row, size in zip((stock, *others), grown):
        cells = [cell for name in ("planned", "total") for cell in _cells(row[name], stock[name])]
        time = "not predicted" if row["time"] is None else f"{100 * (row['time'] - 1):+.1f} %"
        measured = ["-" if size is None else megabytes(size)] if any(grown) else []
        table.add_row(_NAMES[row["graph"]], *cells, time if row is not stock else "", *measured)
    return text_of([table, *(f"note: {remark}" for remark in profiled.plan.remarks)], 100)


def _cells(size: int, stock: int) -> Tuple[str, str]:
    return megabytes(size), f"{100 * (size / stock - 1):+.0f} %" if stock and size != stock else ""
