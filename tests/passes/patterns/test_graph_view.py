"""How patterns look at a graph."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry
from echo.passes.patterns import PATTERNS, apply, recurrent_layers
from echo.passes.patterns.graph_view import ADD, Fusion, Part, View, local, pairs
from echo.passes.patterns.recurrent_cells import GRU_CELL, match_gru_cell


def view_of(symbol: mx.sym.Symbol) -> tuple[View, dict[str, int]]:
    """The view of a symbol, and the numbers of its nodes by name."""
    graph = graph_of(symbol)
    return View(graph), {node.name: number for number, node in enumerate(graph.nodes)}


def test_readers_of_each_entry_and_the_user() -> None:
    x = mx.sym.var("x")
    parts = mx.sym.SliceChannel(x, num_outputs=2, name="parts")
    view, at = view_of(mx.sym.Group([mx.sym.exp(parts[0], name="exp") * parts[0], parts[1]]))
    product = next(number for name, number in at.items() if "mul" in name)
    assert view.readers[Entry(at["parts"], 0)] == (at["exp"], product)
    assert view.readers[Entry(at["parts"], 1)] == (-1,)
    assert view.readers[Entry(product)] == (-1,)


@pytest.mark.parametrize(
    ("attrs", "part"),
    [
        ({}, (2, 3)),
        ({"axis": 1}, (2, 3)),
        ({"axis": -1}, (2, 3)),
        ({"axis": 0}, None),
        ({"squeeze_axis": True}, None),
        ({"num_outputs": 1}, None),
    ],
)
def test_slice_of_equal_parts_is_a_part(attrs: dict[str, int], part: tuple[int, int] | None) -> None:
    symbol = mx.sym.SliceChannel(mx.sym.var("x"), **{"num_outputs": 3, **attrs}, name="parts")
    view, at = view_of(mx.sym.tanh(symbol[len(symbol) - 1], name="last"))
    entry = view.graph.nodes[at["last"]].inputs[0]
    assert view.part(entry) == (None if part is None else Part(Entry(at["x"]), *part, at["parts"]))


def test_output_of_no_slice_is_no_part() -> None:
    view, at = view_of(mx.sym.tanh(mx.sym.exp(mx.sym.var("x"), name="exp"), name="last"))
    assert view.part(Entry(at["exp"])) is None


def test_layers_match_each_of_their_cells_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [mx.sym.var(f"x{number}") for number in range(6)]
    outputs, _ = mx.rnn.GRUCell(4, prefix="gru_").unroll(len(steps), inputs=steps, merge_outputs=True)
    tried: list[int] = []

    def counted(view: View, number: int) -> Fusion | str | None:
        tried.append(number)
        return match_gru_cell(view, number)

    counting = replace(GRU_CELL, match=counted)
    monkeypatch.setattr(recurrent_layers, "GRU_CELL", counting)
    monkeypatch.setattr(apply, "PATTERNS", {**PATTERNS, GRU_CELL.name: counting})
    fusions, _ = apply.find(graph_of(outputs))
    assert "gru_layer" in {fusion.pattern for fusion in fusions}
    assert len(tried) == len(set(tried)) >= len(steps)


@pytest.mark.parametrize("kind", ["tanh", "sigmoid", "relu"])
def test_activations_have_several_spellings(kind: str) -> None:
    spellings = [getattr(mx.sym, kind), lambda x, name: mx.sym.Activation(x, act_type=kind, name=name)]
    for spelling in spellings:
        view, at = view_of(spelling(mx.sym.var("x"), name="active"))
        found = {other: view.activated(Entry(at["active"]), other) for other in ("tanh", "sigmoid", "relu")}
        assert found == {other: Entry(at["x"]) if other == kind else None for other in found}


def test_inputs_of_the_first_output_alone() -> None:
    norm = mx.sym.LayerNorm(mx.sym.var("x"), output_mean_var=True, name="norm")
    view, at = view_of(mx.sym.Group([norm[0], norm[1]]))
    assert view.inputs(Entry(at["norm"], 0), ("LayerNorm",)) is not None
    assert view.inputs(Entry(at["norm"], 1), ("LayerNorm",)) is None
    assert view.inputs(Entry(at["norm"], 0), ADD) is None


def test_node_read_from_outside_is_named() -> None:
    x = mx.sym.var("x")
    a = mx.sym.tanh(x, name="a")
    b = mx.sym.exp(a, name="b")
    view, at = view_of(mx.sym.Group([mx.sym.sin(b, name="c"), mx.sym.cos(a, name="d")]))
    inside = frozenset({at["a"], at["b"]})
    assert view.read_outside(inside, [Entry(at["b"])]) == "a"
    assert view.read_outside(inside, [Entry(at["a"])]) == "b"
    assert view.read_outside(inside, [Entry(at["a"]), Entry(at["b"])]) == ""


def test_nodes_that_others_wait_for_are_read() -> None:
    view, at = view_of(mx.sym.exp(mx.sym.tanh(mx.sym.var("x"), name="a"), name="b"))
    nodes = list(view.graph.nodes)
    nodes[at["b"]] = nodes[at["b"]]._with(control_deps=(at["a"],))
    waiting = View(view.graph._with(nodes))
    assert waiting.has_control_deps == {at["a"], at["b"]}
    assert waiting.read_outside(frozenset({at["a"]}), [Entry(at["a"])]) == "a"


def test_small_helpers() -> None:
    assert list(pairs((Entry(1), Entry(2)))) == [(Entry(1), Entry(2)), (Entry(2), Entry(1))]
    assert (local(0), local(2, 1)) == (Entry(-1, 0), Entry(-3, 1))
