"""``mxecho doctor``: what of echo works on this machine, what is off, and why."""

import dataclasses

import typer

from echo.cli.arguments import Json, print_json


def doctor(as_json: Json = False) -> None:
    """Say what of echo works on this machine, what is off, and why.

    Ends with 0 where echo works, if with something off, and with 1 where it cannot.

    \b
    Examples:
      mxecho doctor
      mxecho doctor --json
    """
    from echo.cli import machine  # with all that it asks

    facts = machine.examine()
    works = machine.works(facts)
    if as_json:
        print_json({"works": works, "facts": [dataclasses.asdict(fact) for fact in facts]})
    else:
        print(machine.render(facts))
    raise typer.Exit(0 if works else 1)
