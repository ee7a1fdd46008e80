"""Schedules on a chain, counted by hand: what runs again and where, its bytes and seconds, and orders that are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.ir.graph import Entry
from echo.ir.schedule import first_backward, once, replay, steps_of
from echo.ir.training_graph import TrainingGraph
from tests.data_graphs import chain

# nodes 0, 1, 2 are the chain, 3 the loss, 4, 5, 6 the gradients of 2, 1, 0: each reads the gradient before and its map
TRAINING, SECONDS = chain(3)
ORDER = [0, 1, 2, 3, 4, 5, 6]


def order(splits: dict[int, tuple[int, ...]], **more: object) -> list[int]:
    return [step.node for step in steps_of(TRAINING, splits, **more)]  # type: ignore[arg-type]


def test_nothing_runs_again_without_splits() -> None:
    assert order({}) == ORDER
    assert all(step.node == step.slot for step in steps_of(TRAINING, {}))


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({1: (4,)}, [0, 1, 2, 3, 4, 1, 5, 6]),
        ({0: (4,), 1: (4,)}, [0, 1, 2, 3, 4, 0, 1, 5, 6]),  # the copy of 0 is there for 6, too
        ({0: (4, 6), 1: (4,)}, [0, 1, 2, 3, 4, 0, 1, 5, 0, 6]),
        ({0: (6,), 1: (4,)}, [0, 1, 2, 3, 4, 1, 5, 0, 6]),
        ({2: (5,)}, ORDER),  # nobody reads it from there on
    ],
)
def test_copies_run_just_before_they_are_read(splits: dict[int, tuple[int, ...]], expected: list[int]) -> None:
    assert order(splits) == expected


def test_what_does_not_come_from_copies_is_read_where_it_was() -> None:
    splits = {0: (4,), 1: (4,)}
    assert order(splits, again=frozenset({Entry(1)})) == [0, 1, 2, 3, 4, 1, 5, 6]


def test_bytes_and_seconds_of_a_replay() -> None:
    assert replay(TRAINING, ORDER, SECONDS) == (5, 7.0)  # three maps, the loss, the first gradient
    assert replay(TRAINING, order({0: (4,), 1: (4,)}), SECONDS) == (4, 9.0)
    weighed = [2.0**number for number in range(7)]
    assert replay(TRAINING, order({1: (4,)}), weighed).seconds == 127 + 2


def test_an_output_stays_to_the_end() -> None:
    kept = replace(TRAINING, outputs=(Entry(0),), num_forward_outputs=1)
    assert replay(kept, ORDER, SECONDS).bytes == 5
    last = TrainingGraph(TRAINING.nodes[:4], (Entry(0), Entry(1)), 2, 0)
    assert replay(last, ORDER[:4], SECONDS).bytes == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 0, 2, 3, 4, 5, 6], "step 0: 'tanh1' reads 'tanh0' before it ran"),
        ([0, 1, 2, 3, 4, 5], "'tanh_grad6' does not run"),
    ],
)
def test_orders_that_are_none(wrong: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay(TRAINING, wrong, SECONDS)


def test_all_copies_at_the_first_backward_node() -> None:
    assert first_backward(TRAINING) == 4
    assert once(TRAINING, [2, 0]) == {0: (4,), 2: (4,)}
    assert first_backward(TrainingGraph(TRAINING.nodes[:3], (), 0, 0)) == 3
