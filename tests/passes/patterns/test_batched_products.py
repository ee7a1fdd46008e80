"""Families of products and their layouts: by structure, in order, and only where nothing waits for anything."""

from __future__ import annotations

import json
from typing import Any

import mxnet as mx
import pytest

from echo.errors import GraphError
from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry, Graph, Node
from echo.passes.patterns.apply import fused_at, laid_out
from echo.passes.patterns.batched_products import Product, ProductGroup, found_at, fusion, product_groups, sample
from echo.passes.patterns.graph_view import View

STEPS = 26


def products(steps: int = STEPS, **attrs: Any) -> Graph:
    """Products of one weight with inputs that are there from the start."""
    weight, bias = mx.sym.var("w"), mx.sym.var("b")
    parts = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=steps, axis=1, squeeze_axis=True)
    outs = [mx.sym.FullyConnected(part * 2, weight, bias, num_hidden=5, name=f"fc{step}", **attrs)
            for step, part in enumerate(parts)]  # fmt: skip
    return graph_of(mx.sym.Group(outs))


def chain(steps: int, apart: int) -> Graph:
    """Products that each wait for the one so many steps before."""
    weight = mx.sym.var("w")
    outs = [mx.sym.var("start") * (step + 1) for step in range(apart)]
    for step in range(steps):
        outs.append(mx.sym.FullyConnected(outs[-apart] + step, weight, num_hidden=5, no_bias=True, name=f"fc{step}"))
    return graph_of(mx.sym.Group(outs))


def names(graph: Graph, group: ProductGroup) -> list[str]:
    return [graph.nodes[number].name for number in group.members]


def ops(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph.nodes if node.op == op]


def test_a_group_is_found_in_the_order_of_its_steps() -> None:
    graph = products()
    (group,), missed = product_groups(View(graph))
    assert names(graph, group) == [f"fc{step}" for step in range(STEPS)]
    assert not missed


def test_fewer_than_four_are_no_family() -> None:
    assert product_groups(View(products(3))) == ([], [])
    assert len(product_groups(View(products(4)))[0]) == 1


def test_products_with_differing_attributes_leave_the_family() -> None:
    graph = products()
    odd = {number: {"__ctx__": "1"} for number, node in enumerate(graph.nodes) if node.name in ("fc2", "fc3")}
    (group,), _ = product_groups(View(graph.with_attrs(odd)))
    assert len(group.members) == STEPS - 2


def test_products_that_wait_for_each_other_stay() -> None:
    found, (missed,) = product_groups(View(chain(6, 1)))
    assert not found
    assert missed.name == "fc0"
    assert "each of 6 products with this weight waits" in missed.reason


def test_products_of_one_depth_are_a_group_each() -> None:
    graph = chain(8, 4)  # as of two layers with one weight
    found, missed = product_groups(View(graph))
    assert [names(graph, group) for group in found] == [["fc0", "fc1", "fc2", "fc3"], ["fc4", "fc5", "fc6", "fc7"]]
    assert not missed


def test_a_node_that_others_run_after_stays() -> None:
    graph = products(5)
    last = len(graph.nodes) - 1
    assert graph.nodes[last].op == "FullyConnected"
    nodes = (*graph.nodes, Node("identity", "after", (Entry(0),), control_deps=(last,)))
    after = Graph(nodes, (*graph.heads, Entry(last + 1)), graph.arg_nodes, (*graph.row_ptr, graph.row_ptr[-1] + 1))
    (group,), _ = product_groups(View(after))
    assert last not in group.members
    assert len(group.members) == 4


def test_equal_products_are_computed_once() -> None:
    graph = products(8)
    twice = [node.inputs[0] for node in ops(graph, "FullyConnected")][:1] * 2
    numbers = [number for number, node in enumerate(graph.nodes) if node.op == "FullyConnected"]
    nodes = list(graph.nodes)
    for number, source in zip(numbers[-2:], twice):
        nodes[number] = nodes[number]._with(inputs=(source, *nodes[number].inputs[1:]))
    graph = Graph(tuple(nodes), graph.heads, graph.arg_nodes, graph.row_ptr)
    view = View(graph)
    (group,), _ = product_groups(view)
    assert group.duplicates == {numbers[6]: numbers[0], numbers[7]: numbers[0]}
    (kept,), made = laid_out(graph, [fusion(view, group, "batched_products:10")], copies=False)
    assert len(ops(made, "FullyConnected")) == 1
    assert len(ops(made, "slice_axis")) == 6
    assert made.heads[0] == made.heads[6] == made.heads[7]
    assert len(kept.replaced) == 8


@pytest.mark.parametrize(
    ("steps", "chunks", "apart"),
    [(4, [4], 0), (19, [19], 0), (26, [10, 10], 6), (50, [11, 12, 11, 12], 4), (80, [10] * 8, 0), (95, None, 0)],
)
def test_the_weight_gets_one_gradient_or_enough_to_add_in_place(steps: int, chunks: Any, apart: int) -> None:
    graph = products(steps)
    view = View(graph)
    (group,), _ = product_groups(view)
    _, made = laid_out(graph, [fusion(view, group, "batched_products:10")], copies=False)
    sizes = [int(node.attrs["num_args"]) for node in ops(made, "Concat")]
    assert sum(sizes) + apart == steps
    assert chunks is None or sizes == chunks
    count = len(ops(made, "FullyConnected"))
    assert count == len(sizes) + apart
    assert count == 1 or count >= 8
    named = [node.name for node in made.nodes if node.name.startswith("fc") and "_echo" not in node.name]
    assert named == [f"fc{step}" for step in range(steps - apart, steps)]


def test_heads_arguments_and_their_order_stay() -> None:
    graph = products()
    view = View(graph)
    (group,), _ = product_groups(view)
    for layout in ("batched_products:10", "transposed:3"):
        kept, made = laid_out(graph, [fusion(view, group, layout)], copies=False)
        assert kept
        assert len(made.heads) == STEPS
        order = [made.nodes[number].name for number in made.arg_nodes]
        assert order == [graph.nodes[number].name for number in graph.arg_nodes]


def test_arguments_of_single_steps_keep_their_order() -> None:
    weight = mx.sym.var("w")
    outs = [mx.sym.FullyConnected(mx.sym.var(f"x{step}"), weight, num_hidden=5, no_bias=True) for step in range(6)]
    graph = graph_of(mx.sym.Group(outs))
    view = View(graph)
    (group,), _ = product_groups(view)
    kept, made = laid_out(graph, [fusion(view, group, "batched_products:10")], copies=False)
    assert kept
    assert [made.nodes[number].name for number in made.arg_nodes] == ["x0", "w", "x1", "x2", "x3", "x4", "x5"]


def test_random_numbers_keep_their_order() -> None:
    weight, state = mx.sym.var("w"), mx.sym.var("start")
    parts = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=6, axis=1, squeeze_axis=True)
    for part in parts:  # the mask of a step's input is drawn after that of the state before
        product = mx.sym.FullyConnected(mx.sym.Dropout(part), weight, num_hidden=5, no_bias=True)
        state = mx.sym.Dropout(state + product)
    graph = graph_of(state)
    view = View(graph)
    (group,), _ = product_groups(view)
    assert laid_out(graph, [fusion(view, group, "batched_products:10")], copies=False) == ([], graph)


def test_two_families_that_wait_for_each_other_by_halves() -> None:
    """Put together, both would wait for each other: one of them stays."""
    v, w, x = (mx.sym.var(name) for name in "vwx")

    def product(data: Any, weight: Any, name: str) -> Any:
        return mx.sym.FullyConnected(data, weight, num_hidden=5, no_bias=True, name=name)

    a = [product(x * step, v, f"a{step}") for step in range(4)]
    b = [product(a[0] * (step + 2), w, f"b{step}") for step in range(4)]
    c = [product(x * (step + 9), w, f"b{step + 4}") for step in range(4)]
    d = [product(c[0] * (step + 2), v, f"a{step + 4}") for step in range(4)]
    graph = graph_of(mx.sym.Group([x * 1, v * 1, w * 1, *a, *b, *c, *d]))  # and the variables in this order, anyhow
    view = View(graph)
    found, _ = product_groups(view)
    assert [len(group.members) for group in found] == [8, 8]
    both = [fusion(view, group, "batched_products:8") for group in found]
    assert all(laid_out(graph, [one], copies=False)[0] for one in both)
    assert laid_out(graph, both, copies=False)[0] == both[:1]


def test_steps_of_one_array_are_not_put_together_again() -> None:
    weight = mx.sym.var("w")
    parts = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=12, axis=1, squeeze_axis=True)
    outs = [mx.sym.FullyConnected(part, weight, num_hidden=5, no_bias=True) for part in parts]
    graph = graph_of(mx.sym.Group(outs))
    view = View(graph)
    (group,), _ = product_groups(view)
    _, made = laid_out(graph, [fusion(view, group, "batched_products:10")], copies=False)
    assert not ops(made, "Concat")
    assert not ops(made, "SliceChannel")


def test_products_that_are_put_together_are_one() -> None:
    weight = mx.sym.var("w")
    parts = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=40, axis=0, squeeze_axis=True)
    outs = [mx.sym.FullyConnected(part, weight, num_hidden=5, no_bias=True) for part in parts]
    graph = graph_of(mx.sym.Concat(*outs, dim=0))
    view = View(graph)
    (group,), _ = product_groups(view)
    _, made = laid_out(graph, [fusion(view, group, "batched_products:10")], copies=False)
    assert [node.op for node in made.nodes] == ["null", "Reshape", "null", "FullyConnected"]
    shuffled = graph_of(mx.sym.Group([outs[0], mx.sym.Concat(*outs[1:], outs[0], dim=0)]))
    view = View(shuffled)
    (group,), _ = product_groups(view)
    _, made = laid_out(shuffled, [fusion(view, group, "batched_products:10")], copies=False)
    assert len(ops(made, "Concat")) == 1 + 3


def test_places_of_a_plan_are_checked() -> None:
    graph = products()
    (group,), _ = product_groups(View(graph))
    first = group.members[0]
    made = fused_at(graph, [("batched_products:10", first)], copies=False)
    assert made == fused_at(graph, [("batched_products:10", first)], copies=False)
    assert len(ops(made, "FullyConnected")) == 8
    name = "batched_products"
    wrong = [(f"{name}:10", first + 1), (f"{name}:10", 10**6), (f"{name}:x", first), (f"{name}:0", first),
             (f"{name}:-3", first),
             ("transposed:", first), ("batched_products:10:3", first)]  # fmt: skip
    for place in wrong:
        with pytest.raises(GraphError):
            fused_at(graph, [place], copies=False)
    with pytest.raises(GraphError):
        fused_at(graph, [("batched_products:10", first), ("transposed:3", first)], copies=False)
    with pytest.raises(GraphError, match="no layout"):
        found_at(View(graph), [("batched_products:", first)])


def test_a_sample_is_a_group_of_its_own() -> None:
    for bias in (True, False):
        graph = sample(Product(3, 4, 5, bias, "float32", 6))
        assert len(product_groups(View(graph))[0][0].members) == 6
        shapes = {f"x{index}": (3, 4) for index in range(6)}
        symbol = mx.sym.load_json(json.dumps(graph.to_json()))
        assert symbol.infer_shape(**shapes)[1] == [(3, 5)] * 6


def test_ten_thousand_nodes_are_one_family() -> None:
    graph = products(5000)
    assert len(graph.nodes) > 10_000
    found, _ = product_groups(View(graph))
    assert len(found[0].members) == 5000
