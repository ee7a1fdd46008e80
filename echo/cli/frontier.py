"""``mxecho frontier``: what other memory budgets buy."""

from pathlib import Path

import typer

from echo.cli.words import Annotated, Json, NoFuse, PolicyName, Shapes, SymbolFile, print_json, say, shapes_of


def frontier(
    symbol: SymbolFile,
    shapes: Shapes,
    points: Annotated[int, typer.Option(metavar="N", help="How many memory budgets, 2 to 100.")] = 10,
    policy: PolicyName = "search",
    no_fuse: NoFuse = False,
    as_json: Json = False,
) -> None:
    """Say what other memory budgets buy: memory against time.

    Plans go from the least memory that can be reached to that of stock MXNet. Budgets count all that the executor
    holds. Plans that need more memory and more time than another are left out.

    \b
    Examples:
      mxecho frontier model-symbol.json data=128,50 softmax_label=128,50 --points 8
    """
    import echo
    from echo.frontend.files import load_symbol

    symbol_of_file = load_symbol(Path(symbol))
    shapes_by_name = shapes_of(symbol_of_file, shapes)
    curve_of_plans = echo.frontier(symbol_of_file, points, policy=policy, fuse=not no_fuse, **shapes_by_name)
    if as_json:
        print_json(curve_of_plans.to_json())
    else:
        say(curve_of_plans)
