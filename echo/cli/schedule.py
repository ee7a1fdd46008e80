"""``mxecho schedule``: a training graph of any framework within a memory budget."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from echo.cli.arguments import Annotated, Json, PolicyName, number_of, print_json, say
from echo.errors import BudgetError, OptionError

if TYPE_CHECKING:
    from echo.policies.data_graph import DataGraph, Solved
    from echo.policies.problem import Policy

_SCHEDULING = 60.0  # seconds that a schedule may take


def schedule(
    graph: Annotated[
        str, typer.Argument(metavar="GRAPH", help="A training step as JSON: nodes with costs, bytes, dependencies.")
    ],
    budget: Annotated[
        str,
        typer.Option(metavar="VALUE", help='Bytes, "5GB", or part of what is needed without: "50%", 0.5.'),
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
    from echo.cli.tables import as_value, render_schedule
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
    from echo.cli.tables import held_at_peak
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
