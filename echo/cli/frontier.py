"""``mxecho frontier``: what other memory budgets buy."""

from pathlib import Path

import typer

from echo.cli.words import (
    Annotated,
    Json,
    MaxPlanning,
    NoFuse,
    PolicyName,
    Shapes,
    SymbolFile,
    number_of,
    print_json,
    say,
    shapes_of,
)


def frontier(
    symbol: SymbolFile,
    shapes: Shapes,
    points: Annotated[int, typer.Option(metavar="N", help="How many memory budgets, 2 to 100.")] = 10,
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
      mxecho frontier model-symbol.json data=128,50 softmax_label=128,50 --points 8
    """
    import echo
    from echo.frontend.symbols import load_symbol

    symbol_of_file = load_symbol(Path(symbol))
    shapes_by_name = shapes_of(symbol_of_file, shapes)
    options = {"policy": policy, "fuse": not no_fuse, "max_planning": number_of("--max-planning", max_planning)}
    curve_of_plans = echo.frontier(symbol_of_file, points, **options, **shapes_by_name)
    if as_json:
        print_json(curve_of_plans.to_json())
    else:
        say(curve_of_plans)
