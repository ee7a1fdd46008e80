"""Classes hold the nodes of one role in all time steps, and never depend on names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import pytest

from echo.ops import HEAVY
from echo.passes.classes import classes
from echo.training_graph import TrainingGraph
from tests.conftest import Case, case_of, model_case, recomputable

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
    return [number for number in recomputable(training) if training.nodes[number].op not in HEAVY]


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
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(training.to_json()), encoding="utf-8")
    code = (
        "import json, sys\n"
        "from echo.training_graph import TrainingGraph\nfrom echo.passes.classes import classes\n"
        "training = TrainingGraph.from_json(json.load(open(sys.argv[1])))\n"
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
