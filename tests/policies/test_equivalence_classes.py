"""Classes hold the nodes of one role in all time steps, and never depend on names."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Sequence

import mxnet as mx
import pytest

from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.policies.equivalence_classes import classes
from tests.support.cases import Case, case_of, model_case, recomputable, special_case

STEPS, HIDDEN = 12, 8


def lstm(layers: int = 2) -> Case:
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(layers):
        stack.add(mx.rnn.LSTMCell(HIDDEN, prefix=f"l{layer}_"))
    outputs, _ = stack.unroll(STEPS, inputs=mx.sym.var("data"), merge_outputs=False)
    weight = mx.sym.var("weight")
    tops = [mx.sym.FullyConnected(out, weight=weight, no_bias=True, num_hidden=3) for out in outputs]
    return case_of(mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.add_n(*tops)))), {"data": (4, STEPS, 5)})


def found(training: TrainingGraph, rounds: int) -> list[tuple[int, ...]]:
    (groups,) = classes(training, sorted(recomputable(training)), [rounds])
    return groups


def light(training: TrainingGraph) -> list[int]:
    return [number for number in recomputable(training) if not spec(training.nodes[number].op).cost.heavy]


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_every_node_is_in_one_class(rounds: int) -> None:
    training = lstm().training
    groups = found(training, rounds)
    assert sorted(number for group in groups for number in group) == sorted(recomputable(training))


def test_more_rounds_split_classes_and_never_join_them() -> None:
    training = model_case("nmt").training
    counts = []
    for rounds in range(4):
        coarse = {number: group for group in found(training, rounds) for number in group}
        fine = found(training, rounds + 1)
        assert all(len({coarse[number] for number in group}) == 1 for group in fine)
        counts.append(len(fine))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] < len(recomputable(training))


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
@pytest.mark.parametrize("layer", ["l0", "l1"])
def test_time_steps_fall_in_one_class(layer: str, rounds: int) -> None:
    """Only the steps nearer to an end than the rounds may differ."""
    training = lstm().training
    groups = found(training, rounds)
    steps: dict[str, dict[int, int]] = {}
    for number in light(training):
        name = training.nodes[number].name
        if name.startswith(f"{layer}_t"):
            steps.setdefault(name.split("_", 2)[2], {})[int(name.split("_")[1][1:])] = number
    assert set(steps) == {"slice", "i", "f", "c", "o", "state", "out"}
    for role, by_step in steps.items():
        inner = {by_step[step] for step in range(rounds + 1, STEPS - 1 - rounds)}
        homes = [group for group in groups if inner & set(group)]
        assert len(homes) == 1, f"the steps of {role} are in {len(homes)} classes"


def slow_classes(training: TrainingGraph, numbers: Sequence[int], rounds: int) -> list[tuple[int, ...]]:
    """Colour refinement as it is written down, with tuples and sets for colours."""
    forward = [number for number, node in training.operators() if node.forward]
    reads = [entry.node for number in forward for entry in training.nodes[number].inputs]
    colours: list[object] = []
    for number, node in enumerate(training.nodes):
        if node.is_variable:
            colours.append(("shared", number) if reads.count(number) > 1 else ("own", node.outputs))
        else:
            attrs = frozenset(pair for pair in node.attrs.items() if not pair[0].startswith("__"))
            colours.append((node.op, attrs, node.outputs))
    for _ in range(rounds):
        names: dict[object, int] = {}
        before = [names.setdefault(colour, len(names)) for colour in colours]
        for number in forward:
            inputs = []
            for entry in training.nodes[number].inputs:
                parts = len(training.nodes[entry.node].outputs)
                inputs.append((before[entry.node], entry.index if parts <= 8 else -1))
            readers = {other for other in forward if number in {e.node for e in training.nodes[other].inputs}}
            colours[number] = (before[number], tuple(inputs), frozenset(before[other] for other in readers))
        for number in set(range(len(colours))) - set(forward):
            colours[number] = before[number]
    groups: dict[object, list[int]] = {}
    for number in numbers:
        groups.setdefault(colours[number], []).append(number)
    weight = {colour: sum(training.nodes[n].outputs[0].bytes for n in group) for colour, group in groups.items()}
    return [tuple(groups[colour]) for colour in sorted(groups, key=lambda colour: -weight[colour])]


def inception(blocks: int) -> Case:
    """Blocks of four branches, joined, as in Inception: alike but for where they stand."""
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=8, name="stem")
    for block in range(blocks):
        branches = [
            mx.sym.Convolution(x, kernel=(size, size), pad=(pad, pad), num_filter=2, name=f"b{block}_{size}")
            for pad, size in enumerate((1, 3, 5))
        ]
        pooled = mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="max", name=f"b{block}_pool")
        branches.append(mx.sym.Convolution(pooled, kernel=(1, 1), num_filter=2, name=f"b{block}_pooled"))
        active = [mx.sym.Activation(branch, act_type="relu") for branch in branches]
        x = mx.sym.Concat(*active, dim=1, name=f"b{block}_join")
    return case_of(mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(x))), {"data": (2, 3, 8, 8)})


@pytest.mark.every(5)
@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("name", ["unrolled RNN", "stacked layers", "inception", "slices", "many readers"])
def test_classes_are_those_of_an_obvious_implementation(name: str, rounds: int) -> None:
    cases = {"unrolled RNN": lambda: lstm(1), "stacked layers": lambda: lstm(3), "inception": lambda: inception(5)}
    training = (cases[name]() if name in cases else special_case(name)).training
    numbers = sorted(recomputable(training))
    assert found(training, rounds) == slow_classes(training, numbers, rounds)


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_blocks_in_the_middle_of_a_network_fall_in_one_class(rounds: int) -> None:
    """Without weights that they share: a network twice as deep has no more classes."""
    counts = [len(found(inception(blocks).training, rounds)) for blocks in (8, 16)]
    assert counts[0] == counts[1]


def test_layers_differ() -> None:
    """What is at most three operators away from a layer's own weights is told from the same in another layer."""
    training = lstm().training
    for group in found(training, 3):
        names = [training.nodes[number].name for number in group]
        near = {name[:2] for name in names if name.endswith(("_i2h", "_h2h", "_slice", "_state", "_out"))}
        assert len(near) <= 1


def test_gates_differ() -> None:
    """The four gates of a cell: input and output gate have one operator and one shape, but another role."""
    training = lstm(1).training
    middle = {
        training.nodes[number].name.split("_")[-1]: number
        for number in recomputable(training)
        if training.nodes[number].name.startswith("l0_t6_")
    }
    home = {number: index for index, group in enumerate(found(training, 3)) for number in group}
    gates = [home[middle[gate]] for gate in ("i", "f", "c", "o")]
    assert len(set(gates)) == 4


@pytest.mark.parametrize("name", ["nmt", "lm", "resnet50_v1", "densenet121"])
@pytest.mark.parametrize("rounds", [0, 2, 3])
def test_names_do_not_matter(name: str, rounds: int) -> None:
    training = model_case(name).training
    renamed = replace(
        training, nodes=tuple(replace(node, name=f"x{17 * i % 1009}") for i, node in enumerate(training.nodes))
    )
    assert found(renamed, rounds) == found(training, rounds)


def test_annotations_do_not_matter_but_attributes_do() -> None:
    training = model_case("resnet50_v2").training

    def marked(key: str) -> TrainingGraph:
        nodes = [replace(node, attrs={**node.attrs, key: str(i)}) for i, node in enumerate(training.nodes)]
        return replace(training, nodes=tuple(nodes))

    assert found(marked("__note__"), 2) == found(training, 2)
    assert all(len(group) == 1 for group in found(marked("kernel"), 0))


def test_largest_class_comes_first() -> None:
    training = model_case("nmt").training
    weights = [sum(training.nodes[number].outputs[0].bytes for number in group) for group in found(training, 2)]
    assert weights == sorted(weights, reverse=True)


def test_only_what_was_asked_for_is_grouped() -> None:
    training = model_case("lm").training
    some = sorted(recomputable(training))[::7]
    assert sorted(number for group in classes(training, some, [2])[0] for number in group) == some
    assert classes(training, [], [2]) == [[]]


def test_classes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    """Python salts the hashes of texts in every process."""
    training = lstm().training
    path = tmp_path / "graph.pickle"
    path.write_bytes(pickle.dumps(training))
    code = (
        "import pickle, sys\nfrom echo.policies.equivalence_classes import classes\n"
        "training = pickle.load(open(sys.argv[1], 'rb'))\n"
        "numbers = [i for i, node in training.operators() if node.forward]\n"
        "print(classes(training, numbers, range(4)))"
    )
    answers = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60,
            cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        answers.add(done.stdout)
    assert len(answers) == 1
