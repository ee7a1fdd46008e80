"""Schedules on a chain, counted by hand: what is recomputed where, its bytes and seconds, and invalid orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import pytest

from echo.ir.graph import Entry
from echo.ir.schedule import first_backward, once, replay, steps_of, values_in_kernels, with_clones
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode
from tests.support.cases import ALL_CASES, Case, any_case, case_of, special_case
from tests.support.data_graphs import chain
from tests.support.made_graphs import Builder

# nodes 0, 1, 2 are the chain, 3 the loss, 4, 5, 6 the gradients of 2, 1, 0: each reads the gradient before and its map
TRAINING, SECONDS = chain(3)
ORDER = [0, 1, 2, 3, 4, 5, 6]


def order(schedule: dict[int, tuple[int, ...]], **more: object) -> list[int]:
    return [step.node for step in steps_of(TRAINING, schedule, **more)]  # type: ignore[arg-type]


def test_schedule_without_splits_runs_each_node_once() -> None:
    assert order({}) == ORDER
    assert all(step.node == step.position for step in steps_of(TRAINING, {}))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({1: (4,)}, [0, 1, 2, 3, 4, 1, 5, 6]),
        ({0: (4,), 1: (4,)}, [0, 1, 2, 3, 4, 0, 1, 5, 6]),  # the copy of 0 is there for 6, too
        ({0: (4, 6), 1: (4,)}, [0, 1, 2, 3, 4, 0, 1, 5, 0, 6]),
        ({0: (6,), 1: (4,)}, [0, 1, 2, 3, 4, 1, 5, 0, 6]),
        ({2: (5,)}, ORDER),  # nothing reads it from there on
    ],
)
def test_copies_run_just_before_they_are_read(schedule: dict[int, tuple[int, ...]], expected: list[int]) -> None:
    assert order(schedule) == expected


def test_input_without_copy_is_read_where_it_was() -> None:
    schedule = {0: (4,), 1: (4,)}
    assert order(schedule, again=frozenset({Entry(1)})) == [0, 1, 2, 3, 4, 1, 5, 6]


def test_bytes_and_seconds_of_a_replay() -> None:
    assert replay(TRAINING, ORDER, SECONDS) == (5, 7.0)  # three maps, the loss, the first gradient
    assert replay(TRAINING, order({0: (4,), 1: (4,)}), SECONDS) == (4, 9.0)
    weighed = [2.0**number for number in range(7)]
    assert replay(TRAINING, order({1: (4,)}), weighed).seconds == 127 + 2


def test_value_that_only_its_kernel_reads_takes_no_memory() -> None:
    """Node 1 is in a kernel with 0, the gradients 5 and 6 with maps 1 and 0, where these are made in the same pass."""
    inside = {1: 0, 5: 1, 6: 1}
    nodes = [node.having(in_kernel={inside[number]: 0} if number in inside else {})
             for number, node in enumerate(TRAINING.nodes)]  # fmt: skip
    fused = replace(TRAINING, nodes=tuple(nodes))
    assert replay(fused, ORDER, SECONDS).bytes == 5, "maps are saved for the backward pass"
    again = order({0: (4,), 1: (4,)})
    assert values_in_kernels(fused, again) == {(0, 0), (5, 0), (6, 0)}, "map 0, and both copies"
    assert replay(fused, again, SECONDS).bytes == 3, "map 2, the loss, the first gradient"
    assert (0, 0) not in values_in_kernels(replace(fused, outputs=(Entry(0),)), again), "it lives to the end"


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


def structure(training: TrainingGraph) -> list[Any]:
    """Every node in execution order, with all that the memory planner looks at, but without names."""
    return [
        (
            node.op,
            tuple(entry[:2] for entry in node.inputs),
            node.control_deps,
            node.outputs,
            node.inplace,
            node.shape_only,
            node.external,
        )
        for node in training.nodes
    ] + [tuple(entry[:2] for entry in training.outputs)]


def entries_of(case: Case, *names: str) -> frozenset[Entry]:
    """The first outputs of the user's nodes of these names."""
    numbers = {node.name: number for number, node in enumerate(case.training.nodes) if node.forward}
    return frozenset(Entry(numbers[name]) for name in names)


def clones(training: TrainingGraph) -> dict[str, TrainingNode]:
    """The nodes that run a second time, by name."""
    return {node.name: node for node in training.nodes if not node.forward and node.original is not None}


# Against the hook ---------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("name", ALL_CASES)
def test_the_hook_makes_what_was_predicted(name: str, share: float) -> None:
    case = any_case(name)
    entries = case.draw(7, share)
    built = case.bound(case.rewritten(entries))
    predicted = with_clones(case.training, entries)
    assert structure(built) == structure(predicted)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ALL_CASES)
def test_the_hook_makes_as_many_clones_as_predicted(name: str) -> None:
    case = any_case(name)
    several = 0
    for seed in range(3):
        entries = case.draw(seed, 0.7)
        schedule = case.draw_schedule(seed, entries)
        predicted = with_clones(case.training, entries, schedule)
        assert structure(case.bound(case.rewritten(entries, schedule=schedule))) == structure(predicted)
        made = [node for node in predicted.nodes if not node.forward and node.original is not None]
        several += len(made) - len(clones(predicted))
    assert several > 0 or name not in ("nmt", "lm"), "in a recurrent network many nodes are read here and there"


@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize("name", ["nmt", "resnet50_v2", "dropout", "slices"])
def test_forward_nodes_stay_as_they_are(name: str, share: float) -> None:
    case = any_case(name)
    predicted = with_clones(case.training, case.draw(3, share))

    def forward(training: TrainingGraph) -> list[Any]:
        position = {id(node): number for number, node in enumerate(training.nodes) if node.forward}
        order = sorted(position.values())
        rank = {number: index for index, number in enumerate(order)}
        return [
            (node.op, node.name, tuple((rank[entry.node], entry.index) for entry in node.inputs))
            for node in training.nodes
            if node.forward
        ]

    assert forward(predicted) == forward(case.training)
    assert predicted.num_forward_outputs == case.training.num_forward_outputs


def test_operators_that_mxnet_merges_are_recomputed_together() -> None:
    """MXNet merges operators that compute the same before it takes gradients, if their attributes are the same."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc")
    tops = [mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=8, name=name) for name in ("one", "two")]
    case = case_of(mx.sym.MakeLoss(mx.sym.sum(mx.sym.add_n(*tops))), {"data": (32, 5)})
    assert [node.op for node in case.training.nodes if node.forward].count("tanh") == 1
    tanh = frozenset(entry for entry in case.draw(0, 1.0) if case.training.nodes[entry.node].op == "tanh")
    built = case.bound(case.rewritten(tanh))
    assert [node.op for node in built.nodes if node.forward].count("tanh") == 1
    assert structure(built) == structure(with_clones(case.training, tanh))


# Clones -------------------------------------------------------------------------------------------------------


def cloned_chain(length: int) -> tuple[TrainingGraph, list[Entry]]:
    """x -> tanh -> tanh -> ...; every gradient reads the output of its own tanh."""
    b = Builder()
    maps = [b.variable("x", 4)]
    for step in range(length):
        maps.append(b.forward("tanh", f"t{step}", (4,), maps[-1], inplace=((0, 0, False),)))
    gradient = b.variable("head", 4, forward=False)
    for step in reversed(range(length)):
        gradient = b.backward("_backward_tanh", f"g{step}", (4,), gradient, maps[step + 1], control_deps=(step + 1,))
    return b.graph([maps[-1], gradient]), maps[1:]


def test_choosing_nothing_changes_nothing() -> None:
    training, _ = cloned_chain(3)
    assert structure(with_clones(training, ())) == structure(training)


def test_clones_read_clones_where_there_are_any() -> None:
    training, maps = cloned_chain(4)
    planned = with_clones(training, [maps[1], maps[2]])
    found = clones(planned)
    assert set(found) == {"t1_echo", "t2_echo"}
    names = [node.name for node in planned.nodes]
    assert [names[entry.node] for entry in found["t2_echo"].inputs] == ["t1_echo"]
    assert [names[entry.node] for entry in found["t1_echo"].inputs] == ["t0"]
    by_name = {node.name: node for node in planned.nodes}
    assert [names[entry.node] for entry in by_name["g2"].inputs] == ["g3", "t2_echo"]
    assert [names[entry.node] for entry in by_name["g3"].inputs] == ["head", "t3"]
    assert [names[dep] for dep in by_name["g2"].control_deps] == ["t2"], "state and shapes come from the original"


def test_clones_run_just_before_they_are_needed() -> None:
    training, maps = cloned_chain(3)
    names = [node.name for node in with_clones(training, maps[:2]).nodes]
    assert names == ["x", "t0", "t1", "t2", "head", "g2", "t0_echo", "t1_echo", "g1", "g0"]


def test_clones_without_readers_are_not_there() -> None:
    training, maps = cloned_chain(3)
    last = next(number for number, node in enumerate(training.nodes) if node.name == "g1")
    shorter = TrainingGraph(training.nodes[: last + 1], (maps[-1], Entry(last)), 1, 0)
    assert set(clones(with_clones(shorter, [maps[0]]))) == set()
    assert set(clones(with_clones(shorter, [maps[0], maps[1]]))) == {"t0_echo", "t1_echo"}


def test_inputs_read_for_their_shape_stay() -> None:
    b = Builder()
    x = b.variable("x", 4)
    y = b.forward("tanh", "y", (4,), x)
    z = b.forward("tanh", "z", (4,), y)
    head = b.variable("head", 4, forward=False)
    gradient = b.backward("_backward_z", "gz", (4,), head, y, z, shape_only=frozenset({1}))
    planned = with_clones(b.graph([z, gradient]), [y, z])
    names = [node.name for node in planned.nodes]
    (reader,) = (node for node in planned.nodes if node.name == "gz")
    assert [names[entry.node] for entry in reader.inputs] == ["head", "y", "z_echo"]


def test_only_the_chosen_outputs_are_read_from_a_clone() -> None:
    case = special_case("slices")
    parts = next(number for number, node in enumerate(case.training.nodes) if node.name == "parts")
    chosen = frozenset({Entry(parts, 1)})
    planned = with_clones(case.training, chosen)
    (number,) = (i for i, node in enumerate(planned.nodes) if node.name == "parts_echo")
    original = next(i for i, node in enumerate(planned.nodes) if node.name == "parts")
    read = {
        (entry.node == number, entry.index)
        for node in planned.nodes
        if not node.forward
        for entry in node.inputs
        if entry.node in (number, original)
    }
    assert {index for cloned, index in read if cloned} == {1}
    assert 1 not in {index for cloned, index in read if not cloned}
    assert len(planned.nodes[number].outputs) == 4


def test_dropout_is_multiplied_by_its_stashed_mask() -> None:
    case = special_case("dropout")
    planned = with_clones(case.training, entries_of(case, "tanh1", "drop1"))
    clone = clones(planned)["drop1_echo"]
    names = [node.name for node in planned.nodes]
    assert clone.op == "elemwise_mul"
    assert not clone.random
    assert [(names[entry.node], entry.index) for entry in clone.inputs] == [("tanh1_echo", 0), ("drop1", 1)]
    assert len(clone.outputs) == 1


def test_versions_of_entries_do_not_matter() -> None:
    training, maps = cloned_chain(2)
    assert with_clones(training, [Entry(maps[0].node, 0, 5)]) == with_clones(training, [maps[0]])


def test_long_chains_do_not_exhaust_the_stack() -> None:
    training, maps = cloned_chain(2000)
    assert len(with_clones(training, maps[:-1]).nodes) == len(training.nodes) + len(maps) - 1
