"""The small graph in which a node is timed: its inputs, what belongs to it, and how it is cut; nothing runs here."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

from echo.estimators.cost_model import UnmeasurableError
from echo.frontend import install
from echo.frontend.microbenchmark import GraphFacts, excess, microbenchmark_of, parameter_bytes, refuse
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.meter.capi import Microbenchmark, Variable
from tests.support.cases import case_of

BATCH = 64
UINT8 = 3


def training() -> TrainingGraph:
    words = mx.sym.Embedding(mx.sym.var("words"), input_dim=50, output_dim=32, name="embedding")
    hidden = mx.sym.FullyConnected(words, num_hidden=256, name="fc")
    hidden = mx.sym.Activation(hidden, act_type="tanh", name="tanh")
    return case_of(mx.sym.Dropout(hidden, name="drop"), {"words": (BATCH, 6)}).training


GRAPH = training()
FACTS = GraphFacts.of(GRAPH)


def number(name: str) -> int:
    return next(k for k, node in enumerate(GRAPH.nodes) if node.name == name)


def microbenchmark(name: str, too_large: float = 1.0) -> tuple[Microbenchmark, float]:
    return microbenchmark_of(GRAPH, number(name), too_large, FACTS)


def test_a_light_forward_node_is_hot() -> None:
    found, scale = microbenchmark("tanh")
    assert (found.op, found.attrs["act_type"], found.inputs) == ("Activation", "tanh", (Variable((BATCH, 256)),))
    assert (found.hot, found.heavy, found.forward, scale) == (True, False, "", 1.0)
    assert found.bytes == 2 * 4 * BATCH * 256


def test_a_gradient_stands_next_to_its_operator() -> None:
    found, _ = microbenchmark("fc_backward")
    assert found.forward == "FullyConnected"
    assert found.heavy
    assert not found.hot
    assert found.forward_inputs[1].shape == (256, 6 * 32)
    assert len(found.forward_inputs) == 3


def test_indices_stay_below_the_rows() -> None:
    found, _ = microbenchmark("embedding")
    assert isinstance(found.inputs[0], Variable)
    assert found.inputs[0].below == 50


def test_a_large_node_is_cut_along_its_batch() -> None:
    found, scale = microbenchmark("tanh", 4.0)
    assert found.inputs == (Variable((BATCH // 4, 256)),)
    assert scale == 4.0
    product, scale = microbenchmark("fc", 8.0)
    shapes = [item.shape for item in product.inputs if isinstance(item, Variable)]
    assert shapes == [(BATCH // 8, 6, 32), (256, 192), (256,)], "parameters stay as they are"
    assert scale == 8.0
    smallest, scale = microbenchmark("tanh", 1e9)
    assert (smallest.inputs, scale) == ((Variable((2, 256)),), BATCH / 2)


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_reduction_over_the_batch_is_not_cut(shape: tuple[int, ...]) -> None:
    nodes = (TrainingNode("null", "data", (TensorType((BATCH, 8)),)),
             TrainingNode("_np_sum", "sum", (TensorType(shape),), (Entry(0, 0),)))  # fmt: skip
    graph = TrainingGraph(nodes, (Entry(1, 0),), 1, 0)
    found, scale = microbenchmark_of(graph, 1, 4.0, GraphFacts.of(graph))
    assert (found.inputs, scale) == ((Variable((BATCH, 8)),), 1.0)


def test_invisible_outputs_are_cut_too() -> None:
    """Mean and deviation of a LayerNorm: with those of the whole, MXNet refuses its gradient."""
    norm = mx.sym.LayerNorm(mx.sym.tanh(mx.sym.var("data")), name="norm")
    graph = case_of(norm, {"data": (8, 16, 32)}).training
    at = next(k for k, node in enumerate(graph.nodes) if node.op == "_backward_LayerNorm")
    found, scale = microbenchmark_of(graph, at, 4.0, GraphFacts.of(graph))
    shapes = [item.shape for item in found.inputs if isinstance(item, Variable)]
    assert scale == 4.0
    assert shapes == [(2, 16, 32), (2, 16, 32), (32,), (2, 16, 1), (2, 16, 1)]


def large_softmax(rows: int) -> TrainingGraph:
    softmax = mx.sym.softmax(mx.sym.tanh(mx.sym.var("weight", shape=(rows, 1024))), axis=-1, name="softmax")
    return case_of(mx.sym.broadcast_mul(softmax, mx.sym.var("data")), {"data": (1, 1024)}).training


@pytest.mark.parametrize(("rows", "over", "fresh"), [(8192, 0, 4 << 20), (8191, -1, 0)])
def test_large_gradients_are_written_over_what_they_read(rows: int, over: int, fresh: int) -> None:
    """As in the graph, and what they allocate comes from the system from a size on that is cut as they are."""
    graph = large_softmax(rows)
    at = next(k for k, node in enumerate(graph.nodes) if node.op == "_backward_softmax")
    found, scale = microbenchmark_of(graph, at, 8.0, GraphFacts.of(graph))
    assert (found.over, found.fresh) == (over, fresh)
    assert scale == pytest.approx(8, rel=1e-2)
    forward, _ = microbenchmark_of(graph, graph.nodes[at].control_deps[0], 8.0, GraphFacts.of(graph))
    assert (forward.over, forward.fresh) == (-1, 0)


def test_products_of_unrolled_layers_are_hot() -> None:
    x, weight = mx.sym.var("x"), mx.sym.var("weight")
    for step in range(4):
        x = mx.sym.FullyConnected(x, weight, num_hidden=32, no_bias=True, name=f"step{step}")
    graph = case_of(mx.sym.FullyConnected(x, num_hidden=32, name="last"), {"x": (8, 32)}).training
    facts = GraphFacts.of(graph)
    hot = {}
    for number, node in enumerate(graph.nodes):
        if "FullyConnected" in node.op:
            found, _ = microbenchmark_of(graph, number, 1.0, facts)
            assert found.heavy
            hot[node.name] = found.hot
    assert {name for name in hot if hot[name]} == {f"step{step}" for step in range(4)}


def attention(sentences: int, heads: int, mask: tuple[int, ...] | None) -> TrainingGraph:
    """Fused attention over 16 keys of 8 units, with dropped-out weights, and perhaps a mask that is added."""
    rows = sentences * heads
    shapes = {"q": (rows, 16, 8), "k": (rows, 16, 8), "v": (rows, 16, 8), "mask": mask,
              "bits": (rows * 16 * 16 // 8,), "keep": (1,)}  # fmt: skip
    used = "".join(str(int(shapes.get(name) is not None)) for name in ("q", "k", "v", "lengths", *list(shapes)[3:]))
    nodes = [
        TrainingNode("null", name, (TensorType(shape, UINT8 if name == "bits" else 0),))
        for name, shape in shapes.items()
        if shape is not None
    ]
    inputs = tuple(Entry(number, 0) for number in range(len(nodes)))
    outputs = TensorType((rows, 16, 8)), TensorType((rows, 16))
    attrs = {"scale": "0.1", "masking": "0", "fill": "0.0", "root": "0", "present": used}
    nodes.append(TrainingNode("_echo_attention", "attention", outputs, inputs, attrs=attrs))
    return TrainingGraph(tuple(nodes), (Entry(len(inputs), 0),), 1, 0)


@pytest.mark.parametrize(
    ("mask", "excess_", "kept"),
    [
        (None, 8.0, 4),
        ((1, 1, 16, 16), 8.0, 4),
        ((8, 1, 1, 16), 3.0, 8),  # whole sentences
        ((8, 1, 1, 16), 1e9, 4),
        ((32, 1, 16), 8.0, 4),
    ],
)
def test_attention_is_cut_with_its_masks(mask: tuple[int, ...] | None, excess_: float, kept: int) -> None:
    assert install.extension_blocker() == ""
    graph = attention(8, 4, mask)
    found, scale = microbenchmark_of(graph, len(graph.nodes) - 1, excess_, GraphFacts.of(graph))
    by_name = dict(zip((node.name for node in graph.nodes), found.inputs))
    shapes = {name: item.shape for name, item in by_name.items() if isinstance(item, Variable)}
    assert scale == 32 / kept
    assert shapes["q"] == shapes["k"] == shapes["v"] == (kept, 16, 8)
    assert shapes["bits"] == (kept * 16 * 16 // 8,)
    assert shapes["keep"] == (1,)
    if mask is not None:
        assert shapes["mask"] == (max(1, mask[0] * kept // 32), *mask[1:])


@pytest.mark.parametrize("name", ["drop", "drop_backward", "fc", "tanh"])
def test_operators_that_may_run_alone_are_accepted(name: str) -> None:
    """Random numbers, too: the process that measures has its own."""
    refuse(GRAPH, GRAPH.nodes[number(name)])


def test_draws_that_mxnet_does_not_know_of_are_refused() -> None:
    with pytest.raises(UnmeasurableError, match="LeakyReLU draws random numbers of its own"):
        refuse(GRAPH, GRAPH.nodes[number("tanh")].having(op="LeakyReLU", attrs={"act_type": "rrelu"}))
    refuse(GRAPH, GRAPH.nodes[number("tanh")].having(op="LeakyReLU", attrs={"act_type": "leaky"}))


def test_an_rnn_is_measured_without_its_dropout() -> None:
    names = (mx.sym.var(name) for name in ("data", "weights", "state"))
    layers = mx.sym.RNN(*names, mode="gru", num_layers=2, state_size=5, p=0.5, name="rnn")
    training = case_of(layers, {"data": (4, 2, 3)}).training
    found = [at for at, node in enumerate(training.nodes) if node.op in ("RNN", "_backward_RNN")]
    assert len(found) == 2
    for at in found:
        refuse(training, training.nodes[at])
        microbenchmark, _ = microbenchmark_of(training, at, 1.0, GraphFacts.of(training))
        assert microbenchmark.attrs["p"] == "0"


@pytest.mark.parametrize("op", ["Custom", "_random_uniform", "_foreach", "unknown operator"])
def test_foreign_code_is_refused(op: str) -> None:
    with pytest.raises(UnmeasurableError, match=f"{op} is not known to be safe to run on its own"):
        refuse(GRAPH, GRAPH.nodes[number("tanh")].having(op=op, attrs={}))


def test_how_much_too_large() -> None:
    at = number("tanh")
    assert excess(GRAPH, at) == 1.0
    nodes = list(GRAPH.nodes)
    for place in (at, nodes[at].inputs[0].node):
        nodes[place] = nodes[place].having(outputs=(TensorType((BATCH << 12, 256)),))
    larger = replace(GRAPH, nodes=tuple(nodes))
    assert excess(larger, at) == 2 * 4 * (BATCH << 12) * 256 / (16 << 20)


def test_the_gradient_of_a_product_is_cut_as_the_product_is() -> None:
    graph = case_of(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2048, name="fc"), {"x": (2048, 512)}).training
    sizes = {node.op: excess(graph, at) for at, node in enumerate(graph.nodes) if "FullyConnected" in node.op}
    assert sizes["_backward_FullyConnected"] == sizes["FullyConnected"] > 2


def test_gradient_of_a_convolution_is_cut_less_than_the_convolution() -> None:
    """It reads and writes parameters of another layout, which a part of the batch does as often as the whole."""
    conv = mx.sym.Convolution(mx.sym.var("x"), num_filter=512, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv")
    graph = case_of(conv, {"x": (64, 512, 8, 8)}).training
    sizes = {node.op: excess(graph, at) for at, node in enumerate(graph.nodes) if "Convolution" in node.op}
    assert sizes["Convolution"] == pytest.approx(3 * sizes["_backward_Convolution"])
    assert sizes["_backward_Convolution"] > 1


def test_large_sum_in_the_layout_of_convolutions_has_an_array_of_its_own() -> None:
    """A copy of what it is written over would have another layout, in which the sum takes 5 times as long."""
    data = mx.sym.Convolution(mx.sym.var("x"), num_filter=256, kernel=(1, 1), name="conv")
    readers = [mx.sym.Convolution(data, num_filter=4, kernel=(1, 1), name=f"reader{at}") for at in range(3)]
    graph = case_of(mx.sym.Group(readers), {"x": (16, 4, 56, 56)}).training
    sums = [number for number, node in enumerate(graph.nodes) if node.op == "add_n" and not node.forward]
    assert sums
    for number in sums:
        found, _ = microbenchmark_of(graph, number, 8.0, GraphFacts.of(graph))
        assert all(item.blocked for item in found.inputs if isinstance(item, Variable))
        assert found.over == -1


def test_operator_that_moves_too_many_bytes_is_refused() -> None:
    at = number("tanh")
    nodes = [node.having(outputs=(TensorType((2, 1 << 28)),)) if k in (at, GRAPH.nodes[at].inputs[0].node) else node
             for k, node in enumerate(GRAPH.nodes)]  # fmt: skip
    large = replace(GRAPH, nodes=tuple(nodes))
    with pytest.raises(UnmeasurableError, match=r"Activation moves .* bytes, expected at most"):
        microbenchmark_of(large, at, 1e9, GraphFacts.of(large))


LOSS = {"grad_scale": "1", "use_ignore": "0", "ignore_label": "-1", "normalization": "0", "smooth_alpha": "0",
        "present": "1111"}  # fmt: skip


def test_loss_with_a_large_weight_is_cut_in_its_batch() -> None:
    """Not in its classes: each part would read the whole batch, and 133 classes of 30522 took 1.5 times their part."""
    assert install.extension_blocker() == ""
    inputs = tuple(Entry(number, 0) for number in range(4))
    shapes = {"data": (4096, 768), "weight": (30522, 768), "bias": (30522,), "label": (4096,)}
    nodes = [TrainingNode("null", name, (TensorType(shape),)) for name, shape in shapes.items()]
    nodes.append(TrainingNode("_echo_softmax_output", "loss", (TensorType((4096, 30522)),), inputs, attrs=LOSS))
    graph = TrainingGraph(tuple(nodes), (Entry(4, 0),), 1, 0)
    found, scale = microbenchmark_of(graph, 4, excess(graph, 4), GraphFacts.of(graph))
    rows = [item.shape[0] for item in found.inputs if isinstance(item, Variable)]
    assert rows == [133, 30522, 30522, 133]
    assert scale == 4096 / 133
    assert parameter_bytes(graph, 4) == 4 * (30522 * 768 + 30522)
