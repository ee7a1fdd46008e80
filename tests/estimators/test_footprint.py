"""Layers by readable names: of a node alone, and of one that MXNet numbered by what it reads."""

from __future__ import annotations

from typing import Any

import pytest

from echo.errors import KernelError
from echo.estimators import footprint as module
from echo.estimators.footprint import (
    CODE,
    HELD,
    HOLES,
    PLANNED,
    SEEN,
    WORKSPACE_SLOTS,
    Footprint,
    Layers,
    ProcessPeak,
    footprint,
    held_at_peak,
    hole_bytes,
    layer_of,
    process_peak,
    workspace_slot_bytes,
    workspaces,
)
from echo.estimators.mxnet_storage import Storage, plan_storage
from echo.ir.graph import PREFIX, VARIABLE, Entry, fused_node
from echo.ir.schedule import CLONE_SUFFIX, with_clones
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.kernels.library import operator_workspace
from tests.support.cases import ALL_CASES, any_case, model_case
from tests.support.made_graphs import Builder


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("encoder_l0_t12_out", "encoder_l*"),
        ("lstm0_t3_i2h", "lstm*_*"),
        ("stage1_conv2_fwd", "stage*_conv*"),
        ("softmax", "softmax"),
        ("enc_conv_echo12", "enc_conv"),
        ("concat1_echo0", "concat*"),
        ("", "tanh"),
        ("___", "tanh"),
    ],
)
def test_names_of_layers(name: str, layer: str) -> None:
    node: Any = TrainingNode("tanh", name, (TensorType((1,)),))
    assert layer_of(node) == layer


def test_unnamed_nodes_count_to_the_layer_they_read() -> None:
    b = Builder()
    x = b.variable("x", 250)
    scale = b.forward("exp", "exp0", (250,), x)
    hidden = b.forward("FullyConnected", "encoder_l0_fc", (250,), scale)
    total = b.forward("elemwise_add", "_plus7", (250,), hidden, scale)
    wide = b.forward("Concat", "concat3", (250,), total, hidden)
    named = b.forward("broadcast_add", "dec_add4", (250,), wide)
    again = b.backward("Concat", f"concat3{CLONE_SUFFIX}", (250,), total)
    gradient = b.backward("_backward_Concat", "concat3_backward", (250,), again)
    other = b.backward("_backward_add", "dec_add4_backward", (250,), gradient)
    layers = Layers(b.graph((named, other)))
    assert [layers(entry.node) for entry in (hidden, total, wide, again, gradient)] == ["encoder_l*"] * 5
    assert [layers(entry.node) for entry in (named, other)] == ["dec_add*"] * 2
    assert layers(scale.node) == "exp*", "it reads what the user hands in"


def norm(number: int, rows: int, vector: int = 96) -> list[TrainingNode]:
    """A layer norm of so many rows after its inputs, the first of which is node ``number``."""
    shapes = [(rows, 96), (vector,), (96,)]
    variables = [TrainingNode(VARIABLE, f"x{number + k}", (TensorType(shape),)) for k, shape in enumerate(shapes)]
    node = fused_node("layer_norm", "norm", [Entry(number + k) for k in range(3)], {"eps": "1e-5"})
    return [*variables, TrainingNode(node.op, "norm", (TensorType(shapes[0]),), node.inputs, attrs=node.attrs)]


def graph(*nodes: TrainingNode) -> TrainingGraph:
    return TrainingGraph(nodes, (Entry(len(nodes) - 1),), 1, 0)


@pytest.mark.parametrize(("device", "backend"), [("cpu", "cpu"), ("gpu", "cuda")])
def test_each_fused_operator_is_asked(device: str, backend: str) -> None:
    shapes = [[(rows, 96), (96,), (96,)] for rows in (64, 8)]
    expected = [operator_workspace("layer_norm", {"eps": "1e-5"}, given, "float32", backend) for given in shapes]
    assert workspaces(graph(*norm(0, 64), *norm(4, 8)), device) == {3: expected[0], 7: expected[1]}
    assert min(expected) > 0


def test_attributes_count() -> None:
    """The gradient of a softmax output needs a little more where it counts labels."""
    rows = 500_000  # a number for each of them takes more than the room of cuBLAS
    types = [TensorType(shape) for shape in ((rows, 20), (300, 20), (300,), (rows,))]
    variables = [TrainingNode(VARIABLE, f"x{k}", (tensor,)) for k, tensor in enumerate(types)]
    sizes = []
    for normalization in ("0", "2"):
        node = fused_node("softmax_output", "loss", [Entry(k) for k in range(4)], {"normalization": normalization})
        loss = TrainingNode(node.op, "loss", (TensorType((rows, 300)),), node.inputs, attrs=node.attrs)
        sizes.append(workspaces(graph(*variables, loss), "gpu")[4])
    assert 0 < sizes[0] < sizes[1]


def test_operators_of_mxnet_have_no_workspaces() -> None:
    x = TrainingNode(VARIABLE, "x", (TensorType((8, 8)),))
    y = TrainingNode("tanh", "y", (TensorType((8, 8)),), (Entry(0),))
    gradient = TrainingNode(f"_backward_{PREFIX}relu", "z", (TensorType((8, 8)),), (Entry(1),), forward=False)
    assert workspaces(graph(x, y, gradient), "cpu") == {}


def test_shapes_that_a_kernel_refuses_raise_kernel_error() -> None:
    with pytest.raises(KernelError, match="layer_norm"):
        workspaces(graph(*norm(0, 64, vector=95)), "cpu")


FLOAT32 = [name for name in ALL_CASES if name != "float16"]


def footprint_of(training: TrainingGraph, match_range: int = 16) -> Footprint:
    return footprint(training, plan_storage(training, match_range))


def chain(in_place: bool) -> TrainingGraph:
    """x -> a -> b -> loss; ga reads a, gb reads b; every map has 1000 bytes, the gradient of x is the user's array."""
    b = Builder()
    share = {"inplace": ((0, 0, False),)} if in_place else {}
    x = b.variable("x", 250)  # 0
    first = b.forward("exp", "first", (250,), x)  # 1
    second = b.forward("exp", "second", (250,), first)  # 2
    third = b.forward("exp", "third", (250,), second, **share)  # 3
    head = b.variable("head", 250, forward=False)  # 4
    g3 = b.backward("_mul", "g3", (250,), head, third)  # 5
    g2 = b.backward("_mul", "g2", (250,), g3, second, **share)  # 6
    g1 = b.backward("_mul", "g1", (250,), g2, first, external=frozenset({0}))  # 7
    return b.graph([third, g1])


# By hand ------------------------------------------------------------------------------------------------------


def test_a_chain_counted_by_hand() -> None:
    found = footprint_of(chain(in_place=False))
    # first from 1 to 7, second from 2 to 6, third from 3 to the end (an output), g3 from 5 to 6, g2 from 6 to 7
    assert found.live.tolist() == [0, 1000, 2000, 3000, 3000, 4000, 5000, 3000]
    assert (found.peak, found.peak_node) == (5000, 6)
    assert found.at_peak == {module.FEATURE_MAPS: 3000, module.OUTPUT_GRADIENTS: 2000}


def test_maps_that_share_memory_count_once() -> None:
    training = chain(in_place=True)
    found = footprint_of(training)
    # second is read again by g2, so third cannot take its memory; g2 takes that of g3
    assert found.live.tolist() == [0, 1000, 2000, 3000, 3000, 4000, 4000, 3000]
    assert found.at_peak == {module.FEATURE_MAPS: 3000, module.OUTPUT_GRADIENTS: 1000}


def test_map_that_is_written_in_place_has_the_name_of_what_a_gradient_reads() -> None:
    b = Builder()
    x = b.variable("x", 250)
    product = b.forward("FullyConnected", "product", (250,), x)
    wave = b.forward("tanh", "wave", (250,), product, inplace=((0, 0, False),))
    loss = b.forward("exp", "loss", (250,), wave)
    head = b.variable("head", 250, forward=False)
    gradient = b.backward("_mul", "gradient", (250,), head, wave, external=frozenset({0}))
    training = b.graph([loss, gradient])
    storage = plan_storage(training, 16)
    life = next(life for life in module.lifetimes(training, storage) if life.first == product.node)
    assert (life.node, life.layer, life.kind) == (wave.node, "wave", module.FEATURE_MAPS)
    assert set(footprint(training, storage).layers) == {"wave", "loss"}


def test_recomputed_maps_are_counted_while_they_live() -> None:
    training = chain(in_place=False)
    found = footprint_of(with_clones(training, [Entry(2)]))
    # the clone of second is made when g2 wants it: order x first second third head g3 second_echo g2 g1
    assert found.live.tolist() == [0, 1000, 2000, 3000, 2000, 3000, 4000, 5000, 3000]
    assert found.at_peak[module.RECOMPUTED] == 1000


def test_kinds_of_maps() -> None:
    b = Builder()
    x = b.variable("x", 10)
    temporary = b.forward("exp", "temporary", (500,), x)
    stashed = b.forward("exp", "stashed", (10,), temporary)
    last = b.forward("exp", "last", (10,), stashed)
    head = b.variable("head", 10, forward=False)
    gradient = b.backward("_mul", "gradient", (10,), head, stashed, external=frozenset({0}))
    found = footprint_of(b.graph([last, gradient]))
    assert (found.peak_node, found.at_peak) == (2, {module.TEMPORARIES: 2000, module.FEATURE_MAPS: 40})
    assert found.layers == {"stashed": 40, "last": 40}, "outputs live to the end"


def test_output_never_read_lives_for_its_own_step() -> None:
    b = Builder()
    x = b.variable("x", 10)
    b.nodes.append(
        TrainingNode("split", "split", (TensorType((10,)), TensorType((30,))), (x,), original=1)  # second is never read
    )
    last = b.forward("exp", "last", (10,), Entry(1, 0))
    found = footprint_of(b.graph([last]))
    assert found.live.tolist() == [0, 160, 80]


def test_types_have_their_own_sizes() -> None:
    b = Builder()
    x = b.variable("x", 10)
    b.nodes.append(TrainingNode("cast", "double", (TensorType((10,), 1),), (x,), original=1))
    b.nodes.append(TrainingNode("cast", "half", (TensorType((10,), 2),), (Entry(1),), original=2))
    assert footprint_of(b.graph([Entry(2)])).live.tolist() == [0, 80, 100]


def test_an_empty_graph_has_no_peak() -> None:
    found = footprint(TrainingGraph((), (), 0, 0), Storage((), (), (), 0))
    assert (found.peak, found.peak_node, dict(found.at_peak), dict(found.layers)) == (0, 0, {}, {})


# On real graphs -----------------------------------------------------------------------------------------------


def naive_timeline(training: TrainingGraph, storage: Storage) -> list[int]:
    """Bytes alive at each node, by asking each entry at each node whether it is still read."""
    ids = [(number, index) for number, node in enumerate(training.nodes) for index in range(len(node.outputs))]
    readers: dict[tuple[int, int], list[int]] = {key: [key[0]] for key in ids}
    for number, node in enumerate(training.nodes):
        for position, entry in enumerate(node.inputs):
            if position not in node.shape_only:
                readers[entry.node, entry.index].append(number)
    for entry in training.outputs:
        readers[entry.node, entry.index].append(len(training.nodes))
    memory: dict[tuple[int, int], tuple[int, int]] = {}  # the entry whose memory an entry lives in
    for (number, index), chunk, source in zip(ids, storage.chunk, storage.inplace):
        if training.nodes[number].is_variable or chunk < 0 or index in training.nodes[number].untouched:
            continue
        below = training.nodes[number].inputs[source] if source >= 0 else None
        memory[number, index] = memory[below.node, below.index] if below else (number, index)
    timeline = []
    for now in range(len(training.nodes)):
        alive: dict[tuple[int, int], int] = {}
        for key, place in memory.items():
            if key[0] <= now <= max(readers[key]):
                size = training.nodes[key[0]].outputs[key[1]].bytes
                alive[place] = max(alive.get(place, 0), size)
        timeline.append(sum(alive.values()))
    return timeline


@pytest.mark.parametrize("name", ["lm", "resnet50_v1", "densenet121", "dropout", "slices", "float16", "two outputs"])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_timeline_is_that_of_a_naive_walk(name: str, share: float) -> None:
    case = any_case(name)
    planned = with_clones(case.training, case.draw(2, share))
    for match_range in (1, 16):
        storage = plan_storage(planned, match_range)
        assert footprint(planned, storage).live.tolist() == naive_timeline(planned, storage)


@pytest.mark.parametrize("name", FLOAT32)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_peak_is_within_what_is_planned(name: str, share: float) -> None:
    case = any_case(name)
    planned = with_clones(case.training, case.draw(4, share))
    for match_range in (1, 16):
        storage = plan_storage(planned, match_range)
        found = footprint(planned, storage)
        assert 0 < found.peak <= storage.total
        assert found.peak == max(found.live)


@pytest.mark.parametrize("name", ALL_CASES)
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_kinds_and_holders_add_up_to_the_peak(name: str, share: float) -> None:
    case = any_case(name)
    planned = with_clones(case.training, case.draw(5, share))
    storage = plan_storage(planned)
    found = footprint(planned, storage)
    assert sum(found.at_peak.values()) == found.peak
    assert set(found.at_peak) <= {
        module.FEATURE_MAPS, module.RECOMPUTED, module.OUTPUT_GRADIENTS, module.TEMPORARIES,
    }  # fmt: skip
    everything = held_at_peak(planned, storage, found.peak_node, most=10**6)
    assert sum(size for _, size in everything) == found.peak
    largest = held_at_peak(planned, storage, found.peak_node, most=3)
    assert largest == everything[:3]
    assert [size for _, size in everything] == sorted((size for _, size in everything), reverse=True)
    assert {name for name, _ in everything} <= {node.name for node in planned.nodes}
    assert len({name for name, _ in everything}) == len(everything)


def test_layers_hold_what_is_stashed() -> None:
    case = model_case("nmt")
    before = footprint_of(case.training)
    after = footprint_of(with_clones(case.training, case.draw(0, 1.0)))
    assert sum(after.layers.values()) < sum(before.layers.values())
    sizes = list(before.layers.values())
    assert sizes == sorted(sizes, reverse=True)


def test_peak_of_parts_is_their_sum_without_empty_ones() -> None:
    peak = process_peak({HELD: 150, PLANNED: 80, WORKSPACE_SLOTS: 0, CODE: 11})
    assert peak == ProcessPeak({HELD: 150, PLANNED: 80, CODE: 11})
    assert peak.total == 241


def test_peak_below_what_was_seen_gets_the_rest_as_a_part() -> None:
    peak = process_peak({HELD: 150, PLANNED: 80}, at_least=300)
    assert peak.parts[SEEN] == 70
    assert peak.total == 300


def test_peak_above_what_was_seen_stays() -> None:
    assert process_peak({HELD: 150, PLANNED: 80}, at_least=200).parts == {HELD: 150, PLANNED: 80}


def test_peak_with_a_part_that_was_seen_elsewhere_keeps_it() -> None:
    assert process_peak({HELD: 150, SEEN: 30}).parts == {HELD: 150, SEEN: 30}
    assert process_peak({HELD: 150, SEEN: 30}, at_least=200).parts == {HELD: 150, SEEN: 50}


def test_spaces_hold_the_largest_map_in_the_first_and_half_of_it_in_others() -> None:
    assert [workspace_slot_bytes(64, spaces) for spaces in (0, 1, 2, 4)] == [0, 64, 96, 160]


def test_holes_are_a_fifth_of_planned_memory_that_is_allocated_at_each_step() -> None:
    assert (hole_bytes(400, dynamic=True), hole_bytes(400, dynamic=False)) == (80, 0)
    assert {HOLES, WORKSPACE_SLOTS}.isdisjoint(process_peak({HOLES: 0, WORKSPACE_SLOTS: 0}).parts)
