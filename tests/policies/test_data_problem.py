"""Problems of data graphs: what is offered, and when heavy operators are."""

from __future__ import annotations

import pytest

from echo.errors import OptionError
from echo.policies.all import All
from echo.policies.data_problem import problem_of_graph, solve_graph
from echo.policies.none import RecomputeNone
from echo.policies.search import Search
from tests.support.data_graphs import chain, ilp_graph, ilp_plans, unrolled


def test_all_but_the_loss_are_candidates() -> None:
    training, seconds = unrolled(3)
    everything, light = (problem_of_graph(training, seconds, heavy=heavy) for heavy in (True, False))
    forward = [number for number, node in training.operators() if node.forward]
    assert sorted(everything.candidates) == forward[:-1]
    assert training.nodes[forward[-1]].op == "loss"
    offered = {training.nodes[number].op for number in set(everything.candidates) - set(light.candidates)}
    assert offered == {"linear"}


@pytest.mark.parametrize("limit", ["max_bytes", "max_seconds"])
def test_limits_that_make_no_sense(limit: str) -> None:
    with pytest.raises(OptionError, match=f"{limit}: expected zero or more, got -1"):
        problem_of_graph(*chain(3), **{limit: -1})


@pytest.mark.slow
def test_heavy_operators_run_again_where_that_pays() -> None:
    """UNet: without its cheap convolution the second budget costs more, the first does not."""
    plans = ilp_plans("unet_b11")
    first, second = (solve_graph(Search(), *ilp_graph("unet_b11"), max_bytes=plan["peak_bytes"]) for plan in plans[:2])
    assert (first.heavy, second.heavy) == (False, True)
    light = problem_of_graph(*ilp_graph("unet_b11"), max_bytes=plans[1]["peak_bytes"], heavy=False)
    assert light.value(Search().choose(light)).seconds > second.value.seconds
    assert not solve_graph(All(), *ilp_graph("unet_b11")).heavy


def test_the_least_that_is_reached() -> None:
    assert solve_graph(RecomputeNone(), *chain(20), max_bytes=0).value.bytes == 22
    assert solve_graph(All(), *chain(20), max_bytes=0).value.bytes == 22
    assert solve_graph(Search(), *chain(20), max_bytes=0).value.bytes <= 8
