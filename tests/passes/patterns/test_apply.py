"""Fused operators in a graph: what the user sees of it stays, on random graphs too; what cannot be is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo.errors import GraphError
from echo.frontend import install
from echo.frontend.install import install_hook
from echo.frontend.symbols import Binding, graph_of, symbol_of, types_of
from echo.ir.graph import PREFIX, Entry, Graph
from echo.ir.op_spec import COPY_ATTRIBUTE
from echo.ir.training_node import TensorType
from echo.passes.patterns import apply
from echo.passes.patterns.apply import Fused, find, fuse, fused_at, fusion_blocker
from echo.passes.patterns.graph_view import Fusion, View
from tests.support.fused_models import EXAMPLES, ON_CPU
from tests.support.reset_gru_models import MIXES
from tests.support.training import random_arrays
from tests.support.whole_models import MODELS

B, H, T = 3, 4, 5
TOLERANCE = 2e-4  # of the largest element of an array: of some twenty operators after one another, in float32
Symbol = mx.sym.Symbol


@pytest.fixture(autouse=True, scope="module")
def operators() -> None:
    assert (install_hook(), install.extension_blocker()) == ("", "")


# Random graphs -----------------------------------------------------------------------------------------------------


class Drawn:
    """A symbol of patterns, near-misses and other operators, all on arrays [B,H], drawn at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = [mx.sym.var(f"in{k}", shape=(B, H)) for k in range(3)]
        self.keys = [mx.sym.var(f"keys{k}", shape=(B, T, H)) for k in range(2)]
        self.count = 0
        makers: list[Callable[[], list[Symbol]]] = [
            self.lstm, self.gru, self.reset_gru, self.layer, self.attention, self.dot, self.decoy
        ]  # fmt: skip
        for _ in range(self.random.randint(2, 6)):
            self.count += 1
            self.pool += self.random.choice(makers)()
        heads = self.random.sample(self.pool[3:], min(len(self.pool) - 3, self.random.randint(1, 4)))
        self.symbol = mx.sym.Group(heads)

    def any(self) -> Symbol:
        return self.random.choice(self.pool)

    def often(self, share: float) -> bool:
        return self.random.random() < share

    def dense(self, size: int) -> Symbol:
        return mx.sym.FullyConnected(self.any(), num_hidden=size)

    def seen(self, *inner: Symbol) -> list[Symbol]:
        """Sometimes one of these, for others to read."""
        return [self.random.choice(inner)] if self.often(0.25) else []

    def lstm(self) -> list[Symbol]:
        parts = list(mx.sym.SliceChannel(self.dense(4 * H) + self.dense(4 * H), num_outputs=4))
        if self.often(0.2):
            self.random.shuffle(parts)
        i, f, g, o = parts
        new = mx.sym.sigmoid(i) * mx.sym.tanh(g)
        kept = mx.sym.sigmoid(f) * self.any()
        c = kept + (mx.sym.Dropout(new, p=0.4) if self.often(0.2) else new)
        squashed = mx.sym.LayerNorm(c) if self.often(0.2) else c
        return [mx.sym.sigmoid(o) * mx.sym.tanh(squashed), c, *self.seen(new, kept, i)]

    def gru(self) -> list[Symbol]:
        before = self.any()
        x, s = (mx.sym.SliceChannel(self.dense(3 * H), num_outputs=3) for _ in range(2))
        reset, update = mx.sym.sigmoid(x[0] + s[0]), mx.sym.sigmoid(s[1] + x[1])
        new = mx.sym.tanh(x[2] + reset * s[2])
        return [(1 - update) * new + before * update, *self.seen(reset, new)]

    def reset_gru(self) -> list[Symbol]:
        before = self.any()
        r, z = mx.sym.SliceChannel(self.dense(2 * H), num_outputs=2) if self.often(0.5) else (self.any(), self.dense(H))
        reset = mx.sym.sigmoid(r)
        state = reset * before
        again = mx.sym.FullyConnected(state, num_hidden=H)
        update = mx.sym.sigmoid(z + again if self.often(0.2) else z)
        new = mx.sym.tanh(self.dense(H) + again)  # of a variable in a sum, MXNet adds gradients to wrong ones
        mix = self.random.choice(list(MIXES.values()))
        return [mix(update, new, before), *self.seen(reset, new, state)]

    def layer(self) -> list[Symbol]:
        build = self.random.choice([mx.rnn.LSTMCell, mx.rnn.GRUCell, mx.rnn.RNNCell])
        cell = build(H, prefix=f"layer{self.count}_")
        inputs = [self.any() for _ in range(self.random.randint(1, 3))]
        outputs, states = cell.unroll(len(inputs), inputs, begin_state=[self.any() for _ in cell.state_info])
        return [*outputs, *states]

    def attention(self) -> list[Symbol]:
        keys = self.random.choice(self.keys)
        mixed = mx.sym.broadcast_add(keys, mx.sym.expand_dims(self.any(), axis=1))
        if self.often(0.3):
            mixed = mx.sym.LayerNorm(mixed)
        active = mx.sym.tanh(mixed)
        score = mx.sym.FullyConnected(active, num_hidden=1, no_bias=self.often(0.8), flatten=False)
        context = mx.sym.sum(mx.sym.broadcast_mul(keys, mx.sym.softmax(score, axis=1)), axis=1)
        return [context, *(mx.sym.mean(inner, axis=1) for inner in self.seen(mixed, active))]

    def dot(self) -> list[Symbol]:
        query, key, value = (self.random.choice(self.keys) for _ in range(3))
        query = mx.sym.broadcast_add(query, mx.sym.expand_dims(self.any(), axis=1))
        scores = mx.sym.batch_dot(query, key, transpose_b=True)
        if self.often(0.3):
            scores = mx.sym.broadcast_add(scores, mx.sym.ones((1, T, T)) * 0.3)
        weights = mx.sym.softmax(scores)
        context = mx.sym.batch_dot(mx.sym.Dropout(weights, p=0.3) if self.often(0.3) else weights, value)
        if self.often(0.3):
            context = mx.sym.SequenceReverse(context)
        parts = (mx.sym.slice_axis(seen, axis=1, begin=0, end=H) for seen in self.seen(weights))
        return [mx.sym.mean(context, axis=1), *(mx.sym.mean(seen, axis=2) for seen in parts)]

    def decoy(self) -> list[Symbol]:
        makers: list[Callable[[], Symbol]] = [
            lambda: mx.sym.tanh(self.any()) * mx.sym.sigmoid(self.any()),
            lambda: self.any() + self.any(),
            lambda: mx.sym.Dropout(self.any(), p=0.3),
            lambda: mx.sym.BatchNorm(self.any(), use_global_stats=True, fix_gamma=False),
            lambda: mx.sym.SliceChannel(mx.sym.Concat(self.any(), self.any(), dim=1), num_outputs=2)[1],
        ]
        return [self.random.choice(makers)()]


def bound_arrays(symbol: Symbol) -> tuple[dict[str, Any], dict[str, Any], Binding]:
    shapes, _, aux_shapes = symbol.infer_shape()
    drawn = random_arrays(symbol, dict(zip(symbol.list_arguments(), shapes)))
    arrays = {name: mx.nd.array(value) for name, value in drawn.items()}
    aux = {name: mx.nd.ones(shape) * 0.5 for name, shape in zip(symbol.list_auxiliary_states(), aux_shapes)}
    return arrays, aux, Binding.of_arrays(list(arrays.values()), list(aux.values()), ["write"] * len(arrays))


def step(symbol: Symbol, arrays: dict[str, Any], aux: dict[str, Any], grad_req: str) -> list[Any]:
    """Outputs and gradients of a training step."""
    gradients = {name: mx.nd.ones(array.shape) for name, array in arrays.items()}
    executor = symbol.bind(mx.cpu(), arrays, gradients, grad_req, {name: array.copy() for name, array in aux.items()})
    mx.random.seed(3)
    executor.forward(is_train=True)
    random = np.random.RandomState(1)
    executor.backward([mx.nd.array(random.normal(0, 1, out.shape)) for out in executor.outputs])
    return [array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays)]


def variables(symbol: Symbol) -> tuple[list[str], list[str]]:
    return symbol.list_arguments(), symbol.list_auxiliary_states()


def draws(graph: Graph) -> list[str]:
    return [node.name.partition("_echo_")[0] for node in graph.nodes if node.op == "Dropout"]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), copies=st.booleans())
def test_random_graphs_compute_what_they_did(seed: int, copies: bool) -> None:
    with mx.name.NameManager():
        original = Drawn(seed).symbol
    arrays, aux, binding = bound_arrays(original)
    graph = graph_of(original)
    found = fuse(graph, lambda: types_of(graph, binding), copies)
    fused = symbol_of(found.graph)
    assert variables(fused) == variables(original)
    assert len(found.graph.heads) == len(graph.heads)
    assert draws(found.graph) == draws(graph)
    second = (PREFIX + "pack_mask", PREFIX + "draw_mask", PREFIX + "gru_mix")  # each next to another one
    kernels = [node for node in found.graph.nodes if node.op.startswith(PREFIX) and node.op not in second]
    assert len(kernels) == len(found.match_sites)
    assert fused_at(graph, found.match_sites, copies) == found.graph, "a plan names no more than places"
    grad_req = "add" if copies else "write"
    for mine, theirs in zip(step(fused, arrays, aux, grad_req), step(original, arrays, aux, grad_req)):
        assert np.abs(mine - theirs).max() <= TOLERANCE * max(np.abs(theirs).max(), 1e-3), found.match_sites


def test_random_graphs_hold_all_there_is() -> None:
    """Fusions of every pattern, near-misses, graphs with random numbers and auxiliary states."""
    names, reasons, others = set(), set(), set()
    for seed in range(120):
        graph = graph_of(Drawn(seed).symbol)
        found, missed = find(graph)
        names |= {fusion.pattern for fusion in found}
        reasons |= {miss.pattern for miss in missed}
        others |= {node.op for node in graph.nodes} & {"Dropout", "BatchNorm"}
    assert names == set(apply.PATTERNS) - {"rnn", "softmax_output", "cross_entropy", "relu", "bias_act",
                                           "batch_norm_relu"}  # fmt: skip
    assert {"lstm_cell", "gru_cell", "gru_reset", "mlp_score", "attention"} <= reasons
    assert others == {"Dropout", "BatchNorm"}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [*EXAMPLES, *MODELS])
def test_patterns_match_nowhere_but_at_their_anchors(name: str) -> None:
    """Matching every pattern at every node finds no more than the dispatch by anchors."""
    graph = graph_of({**EXAMPLES, **MODELS}[name]().symbol)
    view = View(graph)
    anchored = [(pattern.name, number) for pattern in apply.PATTERNS.values() for number in range(len(graph.nodes))
                if not pattern.may_match(graph, number)]  # fmt: skip
    assert anchored
    assert [place for place in anchored if apply.PATTERNS[place[0]].match(view, place[1]) is not None] == []


def test_a_wrong_fusion_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above, with two inputs of the GRU cells exchanged."""
    real = apply.PATTERNS["gru_cell"].match

    def exchanged(view: Any, number: int) -> Any:
        found = real(view, number)
        if not isinstance(found, Fusion):
            return found
        (node,) = found.nodes
        x, s, h = node.inputs
        return Fusion(**{**vars(found), "nodes": (node._with(inputs=(s, x, h)),)})

    monkeypatch.setattr(apply, "PATTERNS", {"gru_cell": replace(apply.PATTERNS["gru_cell"], match=exchanged)})
    with pytest.raises(AssertionError):
        test_random_graphs_compute_what_they_did()


# What stays --------------------------------------------------------------------------------------------------------


def fused_example(name: str, copies: bool = False) -> tuple[Graph, Fused]:
    example = EXAMPLES[name]()
    graph = graph_of(example.symbol)
    shapes, _, _ = example.symbol.infer_shape(**example.shapes)
    binding = Binding.of_arrays([mx.nd.zeros(shape) for shape in shapes], [], ["write"] * len(shapes))
    return graph, fuse(graph, lambda: types_of(graph, binding), copies, setting=ON_CPU)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_arguments_and_outputs_keep_their_places(name: str) -> None:
    graph, found = fused_example(name)
    assert found.match_sites
    symbol = symbol_of(found.graph)
    assert variables(symbol) == variables(symbol_of(graph))
    assert len(symbol.list_outputs()) == len(graph.heads)
    put_in = [
        fusion for fusion in find(graph, setting=ON_CPU)[0] if (fusion.pattern, fusion.anchor) in found.match_sites
    ]
    replaced = {node for fusion in put_in for node in fusion.replaced}
    gone = {(graph.nodes[node].op, graph.nodes[node].name) for node in replaced}
    assert not gone & {(node.op, node.name) for node in found.graph.nodes}


@pytest.mark.parametrize("copies", [False, True])
def test_gradients_of_operators_that_cannot_add_are_copied(copies: bool) -> None:
    _, found = fused_example("lstm layer", copies)
    texts = {node.attrs.get(COPY_ATTRIBUTE) for node in found.graph.nodes if node.op.startswith(PREFIX)}
    assert texts == {"all" if copies else "sums"}


def test_node_that_the_user_names_is_not_fused() -> None:
    graph, _ = fused_example("gru cells")
    found, _ = find(graph)
    named = min(found[0].replaced)
    rest, missed = find(graph, {named})
    assert len(rest) == len(found) - 1
    assert [miss.reason for miss in missed] == [f"keep or recompute names {graph.nodes[named].name!r}, which is inside"]


def test_a_layer_gives_way_to_the_cells_that_can_be_had() -> None:
    graph, _ = fused_example("lstm layer")
    (layer,) = find(graph)[0]
    named = min(layer.replaced)
    rest, _ = find(graph, {named})
    assert {fusion.pattern for fusion in rest} == {"lstm_cell"}
    assert all(named not in fusion.replaced for fusion in rest)


# Shapes and types --------------------------------------------------------------------------------------------------

CELL = Fusion("lstm_cell", 5, (), {}, frozenset(), {Entry(0): "B,4H", Entry(1): "B,H"}, "")


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (((2, 12), (2, 3)), ""),
        (((2, 13), (2, 3)), "expected shape (B,4H), got (2, 13) where {'B': 2}"),
        (((2, 12), (3, 3)), "expected shape (B,H), got (3, 3) where {'B': 2, 'H': 3}"),
        (((2, 12), (2, 4)), "expected shape (B,H), got (2, 4) where {'B': 2, 'H': 3}"),
        (((24,), (2, 3)), "expected shape (B,4H), got (24,)"),
        (((2, 0), (2, 0)), "an array of shape (2, 0) is empty, or not known"),
        (((-1, 12), (2, 3)), "an array of shape (-1, 12) is empty, or not known"),
        (((), (2, 3)), "an array of shape () is empty, or not known"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, reason: str) -> None:
    types = {Entry(number): TensorType(shape) for number, shape in enumerate(shapes)}
    assert fusion_blocker(CELL, types) == reason


@pytest.mark.parametrize("flags", [(1, 1), (4, 4), (0, 2)])
def test_types_that_do_not_fit(flags: tuple[int, int]) -> None:
    types = {Entry(0): TensorType((2, 12), flags[0]), Entry(1): TensorType((2, 3), flags[1])}
    assert fusion_blocker(CELL, types).startswith("expected arrays of one type, float32 or float16, got ")


@pytest.mark.parametrize(
    ("x", "bias", "fits"),
    [
        ((5, 4), (4,), True), ((5, 4), (1, 4), True), ((2, 5, 4), (1, 4), True), ((5, 4), (5, 4), False),
        ((4, 4), (4, 1), False), ((5, 4), (1, 1, 4), False), ((4,), (4,), False), ((5, 4), (1,), False),
    ],
)  # fmt: skip
def test_a_bias_is_a_vector_or_a_row(x: tuple[int, ...], bias: tuple[int, ...], fits: bool) -> None:
    """Else the sum has another shape than x, or the bias goes along another axis."""
    symbol = mx.sym.tanh(mx.sym.broadcast_add(mx.sym.exp(mx.sym.var("x")), mx.sym.var("b"), name="total"))
    (fusion,) = find(graph_of(symbol))[0]
    wrong = fusion_blocker(fusion, {entry: TensorType(shape) for entry, shape in zip(fusion.shapes, (x, bias))})
    assert (wrong == "") == fits, wrong


def test_fusions_worth_nothing_are_left_out() -> None:
    large = Fusion(**{**vars(CELL), "min_bytes": (Entry(0), 1000)})
    types = {Entry(0): TensorType((2, 12)), Entry(1): TensorType((2, 3))}
    assert fusion_blocker(large, types) == "too small: 96 bytes, expected 1,000 or more"


# What is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([("magic", 20)], "there is no pattern 'magic' at node 20"),
        ([("lstm_cell", 9999)], "there is no pattern 'lstm_cell' at node 9999"),
        ([("lstm_cell", -1)], "there is no pattern 'lstm_cell' at node -1"),
        ([("lstm_cell", 0)], "is no lstm_cell: nothing alike"),
        ([("gru_cell", 20)], "is no gru_cell: nothing alike"),
        ([("lstm_cell", 20), ("lstm_cell", 20)], "two of the operators would take the place of the same nodes"),
    ],
)
def test_places_that_are_none(places: list[tuple[str, int]], message: str) -> None:
    graph, found = fused_example("lstm cells")
    assert ("lstm_cell", 20) in found.match_sites
    with pytest.raises(GraphError, match=f"fused: .*{message}"):
        fused_at(graph, places, copies=False)


def test_cells_take_the_place_of_a_layer_that_would_change_the_order_of_random_numbers() -> None:
    """Masks of zoneout and of the dropout in front of it are drawn step by step in turn."""
    cells = mx.gluon.rnn.HybridSequentialRNNCell()
    cells.add(mx.gluon.rnn.LSTMCell(H, prefix="lstm_"))
    cells.add(mx.gluon.rnn.DropoutCell(0.2))
    cells.add(mx.gluon.rnn.ZoneoutCell(mx.gluon.rnn.GRUCell(H, prefix="gru_"), 0.2))
    outputs, _ = cells.unroll(T, mx.sym.var("data", shape=(B, T, H)), layout="NTC", merge_outputs=True)
    graph = graph_of(outputs)
    assert "gru_layer" in {fusion.pattern for fusion in find(graph)[0]}
    _, _, binding = bound_arrays(outputs)
    fused = fuse(graph, lambda: types_of(graph, binding), copies=False, without={"dropout"})
    assert sorted(pattern for pattern, _ in fused.match_sites) == [*["gru_cell"] * T, "lstm_layer"]
    assert ("gru_layer", apply.ORDER) in {(missed.pattern, missed.reason) for missed in fused.missed}
