"""Arguments keep their places in every order in which a graph reads them, with shapes that are equal by chance, too."""

from __future__ import annotations

import random
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.errors import GraphError
from echo.frontend import install
from echo.frontend.capture import training_graph
from echo.frontend.install import install_hook
from echo.frontend.symbols import Binding, graph_of, symbol_of, types_of
from echo.ir.graph import VARIABLE, Entry, Graph, Node
from echo.passes.patterns import legality
from echo.passes.patterns.apply import ORDER, find, fuse, fused_at
from echo.passes.patterns.graph_view import ADD, MUL, Fusion, local
from echo.passes.patterns.substitute import applied
from tests.support import fused_models
from tests.support.attention_models import FORMS
from tests.support.fused_models import EXAMPLES, ON_CPU, Example

TOLERANCE = 2e-4  # of the largest element of an array, as in test_apply
SIZES = {"as they are": {}, "B = 4H": {"SIZE": 2, "BATCH": 8}, "B = H = T": {"SIZE": 4, "BATCH": 4, "STEPS": 4}}
# masks and outputs that are worth something only where they are large: their sizes are their own
SEEDS = range(3)
CHANGED = ("lstm", "gru", "attention", "biased")
CASES = [(name, sizes) for name in EXAMPLES for sizes in SIZES if name not in FORMS
         and (sizes == "as they are" or any(word in name for word in CHANGED))]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def operators() -> None:
    assert (install_hook(), install.extension_blocker()) == ("", "")


def turned(graph: Graph, seed: int) -> Graph:
    """The graph with the operands of some sums and products exchanged, and some variables read first, by heads."""
    chosen = random.Random(seed)
    nodes = [node._with(inputs=node.inputs[::-1]) if node.op in ADD | MUL and chosen.random() < 0.5 else node
             for node in graph.nodes]  # fmt: skip
    variables = list(graph.arg_nodes)
    chosen.shuffle(variables)
    first = variables[: chosen.randrange(3)] if seed else []
    heads = [Entry(len(nodes) + at) for at in range(len(first))]
    nodes += [Node("BlockGrad", f"first{at}", (Entry(number),)) for at, number in enumerate(first)]
    rows = (*graph.row_ptr, *(graph.row_ptr[-1] + 1 + at for at in range(len(first))))
    result = applied(Graph(tuple(nodes), (*heads, *graph.heads), graph.arg_nodes, rows, graph.attrs), [], copies=False)
    assert result is not None
    return result


def results(symbol: mx.sym.Symbol, given: dict[str, Any], example: Example) -> list[Any]:
    """Outputs and gradients of a training step; an index has none."""
    arrays = {name: mx.nd.array(value) for name, value in given.items()}
    gradients = {name: mx.nd.zeros(value.shape) for name, value in given.items()}
    requests = {name: "null" if name in example.integers else "write" for name in given}
    executor = symbol.bind(mx.cpu(), arrays, gradients, requests)
    mx.random.seed(3)
    executor.forward(is_train=True)
    drawn = np.random.RandomState(1)
    executor.backward([mx.nd.array(drawn.normal(0, 1, out.shape)) for out in executor.outputs])
    return [array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays) if array is not None]


def values(symbol: mx.sym.Symbol, example: Example) -> tuple[dict[str, Any], Binding]:
    shapes, _, _ = symbol.infer_shape(**example.shapes)
    drawn = np.random.RandomState(5)
    given = {}
    for name, shape in zip(symbol.list_arguments(), shapes):
        most = example.integers.get(name)
        given[name] = drawn.randint(0, most, shape) if most else drawn.normal(0, 0.5, shape)
    arrays = [mx.nd.array(value) for value in given.values()]
    return given, Binding.of_arrays(arrays, [], ["write"] * len(arrays))


@pytest.mark.every(23)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_every_order_and_shapes_equal_by_chance(
    name: str, sizes: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in SIZES[sizes].items():
        monkeypatch.setattr(fused_models, key, value)
    example = EXAMPLES[name]()
    original = turned(graph_of(example.symbol), seed)
    symbol = symbol_of(original)
    given, binding = values(symbol, example)
    types = types_of(original, binding)
    found = fuse(original, lambda: types, copies=False, setting=ON_CPU)
    fused = symbol_of(found.graph)
    assert fused.list_arguments() == symbol.list_arguments()
    assert fused_at(original, found.match_sites, copies=False, setting=ON_CPU) == found.graph
    assert found.match_sites or any(miss.reason == ORDER for miss in found.missed) or sizes != "as they are"
    for mine, theirs in zip(results(fused, given, example), results(symbol, given, example)):
        assert np.abs(mine - theirs).max() <= TOLERANCE * max(np.abs(theirs).max(), 1e-3), found.match_sites


def test_an_order_that_is_lost_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the repair and its check, as when steps were tidied up after it."""
    monkeypatch.setattr("echo.passes.patterns.apply.ordered", lambda made, original: made)
    with pytest.raises((AssertionError, mx.MXNetError)):
        test_every_order_and_shapes_equal_by_chance("lstm layer, states given", "as they are", 0, monkeypatch)


def many(patterns: int) -> tuple[Graph, list[Fusion]]:
    """Sums of two variables each, and what would read the second half of them the other way round, first."""
    nodes = [Node(VARIABLE, f"{side}{at}") for at in range(patterns) for side in "ab"]
    sums = [Node("elemwise_add", f"sum{at}", (Entry(2 * at), Entry(2 * at + 1))) for at in range(patterns)]
    joined = Node("add_n", "all", tuple(Entry(2 * patterns + at) for at in range(patterns)),
                  attrs={"num_args": str(patterns)})  # fmt: skip
    count = 3 * patterns + 1
    graph = Graph((*nodes, *sums, joined), (Entry(count - 1),), tuple(range(2 * patterns)), tuple(range(count + 1)), {})
    graph = applied(graph, [], copies=False) or graph
    fusions = []
    for number, node in enumerate(graph.nodes):
        if node.op == "elemwise_add":
            turn = node.name == "sum0"
            new = Node("elemwise_mul", node.name, node.inputs[::-1] if turn else node.inputs)
            fusions.append(Fusion("turned", number, (new,), {Entry(number): local(0)}, frozenset({number}), {}, ""))
    return graph, fusions


def test_one_place_that_would_change_the_order_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sum would read its second variable first, which nothing can repair: there is no operator before it."""
    graph, fusions = many(40)
    monkeypatch.setattr("echo.passes.patterns.apply.find", lambda *_: (fusions, []))
    found = fuse(graph, dict, copies=False)
    assert len(found.match_sites) == len(fusions) - 1
    assert [(miss.name, miss.reason) for miss in found.missed] == [("sum0", ORDER)]
    assert found.graph.variable_names == graph.variable_names


def test_variables_of_one_name_are_not_fused() -> None:
    """Which of them is which cannot be told: an order that looks the same may be another."""
    graph = graph_of(EXAMPLES["lstm cells"]().symbol)
    names = ["h0" if node.name == "c0" else node.name for node in graph.nodes]
    alike = graph.with_names(names)
    assert find(alike)[0]
    assert legality.ordered(alike, alike) is None


def read_early(rows: int) -> mx.sym.Symbol:
    """A layer whose input is a node with an equal one, which MXNet merges and which something reads before it."""
    data = mx.sym.var("data")
    early = mx.sym.broadcast_mul(mx.sym.tanh(mx.sym.abs(data)), mx.sym.var("scale"))
    cell = mx.gluon.rnn.LSTMCell(4, prefix="cell_")
    states = [mx.sym.var("h", shape=(rows, 4)), mx.sym.var("c", shape=(rows, 4))]
    layer = cell.unroll(3, mx.sym.tanh(mx.sym.abs(data)), layout="TNC", merge_outputs=True, begin_state=states)[0]
    return mx.sym.Group([mx.sym.MakeLoss(early), mx.sym.MakeLoss(layer)])


@pytest.mark.parametrize(("rows", "scale"), [(2, (1, 2, 1)), (4, (4, 4)), (16, (16, 4))])
def test_a_merged_node_does_not_wait_for_arguments(rows: int, scale: tuple[int, ...]) -> None:
    """MXNet's EliminateCommonExpr hands what a node waits for to the equal node before it."""
    symbol = read_early(rows)
    example = Example(symbol, {"data": (3, rows, 4), "scale": scale}, {}, {})
    original = graph_of(symbol)
    given, binding = values(symbol, example)
    found = fuse(original, lambda: types_of(original, binding), copies=False)
    assert "lstm layer" in str(found.counts).lower(), found
    training_graph(found.graph, binding, mx.cpu())  # which looks at the order that MXNet binds
    for mine, theirs in zip(results(symbol_of(found.graph), given, example), results(symbol, given, example)):
        assert np.abs(mine - theirs).max() <= TOLERANCE * max(np.abs(theirs).max(), 1e-3)


def test_an_order_that_mxnet_changes_is_refused() -> None:
    """Of two equal nodes, the second waits for a variable that is read last: MXNet binds it first."""
    x, last = mx.sym.var("x"), mx.sym.var("last")
    original = graph_of(mx.sym.exp(x) * mx.sym.var("first") + mx.sym.exp(x) * last)
    number = {node.name: at for at, node in enumerate(original.nodes)}
    read, late = (at for at, node in enumerate(original.nodes) if node.op == "exp"), number["last"]
    _, twin = read
    nodes = list(original.nodes)
    # the variable goes before the node that waits for it
    assert twin < late
    nodes[twin], nodes[late] = nodes[late], nodes[twin]._with(control_deps=(twin,))
    moved = {twin: late, late: twin}
    nodes = [node._with(inputs=tuple(Entry(moved.get(entry.node, entry.node), entry.index) for entry in node.inputs))
             for node in nodes]  # fmt: skip
    arguments = tuple(at for at, node in enumerate(nodes) if node.is_variable)
    waiting = Graph(tuple(nodes), original.heads, arguments, original.row_ptr, original.attrs)
    arrays = [mx.nd.zeros((2, 3))] * len(arguments)
    binding = Binding.of_arrays(arrays, [], ["write"] * len(arrays))
    assert len(training_graph(original, binding, mx.cpu()).nodes) > 0
    with pytest.raises(GraphError, match=r"another order: expected .*'first', 'last'.*, got .*'last', 'first'"):
        training_graph(waiting, binding, mx.cpu())


@pytest.mark.parametrize("op", ["relu", "Custom"])
def test_waiting_custom_operator_gets_no_attribute(op: str) -> None:
    def graph(first: str, second: str) -> Graph:
        nodes = (Node(VARIABLE, "a"), Node(op, "waits", (Entry(0),)), Node(VARIABLE, first), Node(VARIABLE, second),
                 Node("add_n", "sum", (Entry(1), Entry(2), Entry(3)), attrs={"num_args": "3"}))  # fmt: skip
        return Graph(nodes, (Entry(4),), (0, 2, 3), tuple(range(6)), {})

    found = legality.ordered(graph("c", "b"), graph("b", "c"))
    assert found is not None
    assert [found.nodes[number].name for number in found.arg_nodes] == ["a", "b", "c"]
    (waits,) = (node for node in found.nodes if node.name == "waits")
    assert waits.control_deps
    assert (legality.ORDER_ATTRIBUTE in waits.attrs) == (op == "relu")


WITH_OUTPUTS = {  # of an operator, the output that is read
    "split": lambda x: mx.sym.split(x, num_outputs=2, axis=2)[1],
    "split_v2": lambda x: mx.sym.split_v2(x, 2, axis=2)[1],
    "layer norm": lambda x: mx.sym.LayerNorm(x, mx.sym.ones((12,)), mx.sym.zeros((12,)), output_mean_var=True)[0],
    "topk": lambda x: mx.sym.topk(x, axis=2, k=5, ret_typ="both")[0],
}


@pytest.mark.parametrize("kind", WITH_OUTPUTS)
def test_waiting_node_keeps_all_its_outputs(kind: str) -> None:
    """The graph counted one output of it, and no layer was fused where the second is read."""
    symbol = mx.gluon.rnn.LSTM(4, prefix="l_")(WITH_OUTPUTS[kind](mx.sym.var("data", shape=(3, 2, 12))))
    example = Example(symbol, {"data": (3, 2, 12)}, {}, {})
    original = graph_of(symbol)
    given, binding = values(symbol, example)
    found = fuse(original, lambda: types_of(original, binding), copies=False)
    assert found.match_sites
    waiting = [number for number, node in enumerate(found.graph.nodes) if node.control_deps]
    (at,) = (at for number in waiting for at, node in enumerate(original.nodes)
             if node.name == found.graph.nodes[number].name)  # fmt: skip
    assert found.graph.num_outputs(waiting[0]) == original.num_outputs(at) > 1
    for mine, theirs in zip(results(symbol_of(found.graph), given, example), results(symbol, given, example)):
        assert np.abs(mine - theirs).max() <= TOLERANCE * max(np.abs(theirs).max(), 1e-3)
