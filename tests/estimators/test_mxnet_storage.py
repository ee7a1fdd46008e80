"""MXNet's storage planner on graphs made by hand; `tests/estimators/test_planner.py` holds it against MXNet itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.estimators.mxnet_storage import blocks_of, plan_storage
from echo.ir.training_graph import ASSIGNED, DYNAMIC, PEAK, STATIC, TrainingGraph
from tests.made_graphs import Builder


def chain(*elements: int, **last: Any) -> TrainingGraph:
    """x -> 0 -> 1 -> ...; each map has so many elements of four bytes, and only the next reads it."""
    b = Builder()
    maps = [b.variable("x", 1)]
    for number, count in enumerate(elements):
        more = last if number == len(elements) - 1 else {}
        maps.append(b.forward("exp", f"map{number}", (count,), maps[-1], **more))
    return b.graph([maps[-1]])


def chunks(training: TrainingGraph, match_range: int = 16) -> tuple[int, ...]:
    return plan_storage(training, match_range).chunk[1:]


def test_a_chunk_is_free_behind_its_last_reader() -> None:
    training = chain(10, 10, 10, 10)
    assert chunks(training) == (0, 1, 0, 1)
    assert plan_storage(training).total == 80


@pytest.mark.parametrize(("match_range", "total"), [(0, 4 * 112), (1, 4 * 112), (2, 4 * 112), (16, 4 * 110)])
def test_the_match_range_bounds_how_much_a_chunk_may_differ(match_range: int, total: int) -> None:
    """The third map would take the chunk of the first, which is fifty times as large or small; at most 16 times."""
    found = plan_storage(chain(10, 100, 2), match_range)
    assert found.total == total
    assert (found.chunk[3] == found.chunk[1]) == (match_range == 16)


def test_a_chunk_grows_to_the_largest_map_in_it() -> None:
    found = plan_storage(chain(10, 10, 30))
    assert found.chunk_bytes == (120, 40)


@pytest.mark.parametrize(
    ("pair", "elements", "shared"),
    [((0, 0, False), 10, True), ((0, 0, False), 20, False), ((0, 0, True), 10, True)],
)
def test_in_place_where_the_sizes_are_equal(pair: tuple[int, int, bool], elements: int, shared: bool) -> None:
    found = plan_storage(chain(10, elements, inplace=(pair,)))
    assert (found.chunk[2] == found.chunk[1]) == shared
    assert found.inplace[2] == (0 if shared else -1)


def test_a_map_that_is_read_again_stays() -> None:
    b = Builder()
    x = b.variable("x", 10)
    one = b.forward("exp", "one", (10,), x)
    two = b.forward("exp", "two", (10,), one, inplace=((0, 0, False),))
    three = b.forward("add", "three", (10,), two, one)
    found = plan_storage(b.graph([three]))
    assert len({found.chunk[entry.node] for entry in (one, two, three)}) == 3
    assert found.inplace == (-1, -1, -1, -1)


def test_a_view_shares_what_others_read() -> None:
    b = Builder()
    x = b.variable("x", 10)
    one = b.forward("exp", "one", (10,), x)
    view = b.forward("Reshape", "view", (10,), one, inplace=((0, 0, True),))
    both = b.forward("add", "both", (10,), view, one)
    found = plan_storage(b.graph([both]))
    assert found.chunk[view.node] == found.chunk[one.node]
    assert found.total == 80


def test_what_is_not_the_planners_takes_nothing() -> None:
    assert plan_storage(chain(10, 10, external=frozenset({0}))).total == 40
    assert plan_storage(chain(10, 10, untouched=frozenset({0}))).total == 40
    assert plan_storage(chain(10, 10)).total == 80


def test_echos_own_assignment_and_the_peak() -> None:
    """Assigned largest first, the small maps lie in what the large ones leave free."""
    training = chain(10, 10, 100, 100, 10)
    assert plan_storage(training, ASSIGNED).total == 4 * 200
    assert plan_storage(training, PEAK).total == 4 * 200
    assert plan_storage(training, 0).total == 4 * 230


def two_passes(runner: str) -> TrainingGraph:
    b = Builder()
    x = b.variable("x", 10)
    first = b.forward("exp", "first", (10,), x)
    second = b.forward("exp", "second", (10,), first)
    loss = b.forward("exp", "loss", (10,), second)
    gradient = b.backward("_backward", "gradient", (10,), loss)
    last = b.backward("_backward", "last", (10,), gradient, first)
    return replace(b.graph([loss, last]), runner=runner)


@pytest.mark.parametrize(("runner", "total"), [("executor", 4 * 40), (STATIC, 4 * 50), (DYNAMIC, 4 * 40)])
def test_the_passes_of_a_cached_op_are_planned_apart(runner: str, total: int) -> None:
    """Behind the forward pass everything stays where it is; allocated dynamically, what is alive at once counts."""
    assert plan_storage(two_passes(runner)).total == total


def test_blocks_live_from_their_first_to_their_last_entry() -> None:
    training = chain(10, 10, 10)
    found = plan_storage(training, 0)
    blocks = blocks_of(training, found.chunk, found.chunk_bytes)
    assert [(block.bytes, block.first, block.last) for block in blocks.values()][:2] == [(40, 1, 2), (40, 2, 3)]
