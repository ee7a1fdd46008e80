"""NNVM's JSON goes in and out without loss, broken JSON is refused, graphs print, and planning needs no mxnet."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import pytest

from benchmarks.models import SMALL
from echo.errors import GraphError
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.graph import Entry, Graph, Node

ROOT = Path(__file__).parents[2]


class Half(mx.operator.CustomOp):
    """Half of the input."""

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] / 2)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], out_grad[0] / 2)


@mx.operator.register("echo_test_half")
class HalfProperties(mx.operator.CustomOpProp):
    """Registers `Half`."""

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Half:
        return Half()


def var(name: str, **options: Any) -> mx.sym.Symbol:
    return mx.sym.var(name, **options)


def batch_norm() -> mx.sym.Symbol:
    net = mx.sym.Convolution(var("data"), kernel=(3, 3), num_filter=4, name="conv")
    net = mx.sym.BatchNorm(net, fix_gamma=False, eps=1e-3, name="norm")
    return mx.sym.Pooling(net, kernel=(2, 2), pool_type="max", name="pool")


def slices() -> mx.sym.Symbol:
    parts = mx.sym.SliceChannel(var("data"), num_outputs=3, name="parts")
    return mx.sym.Group([parts, mx.sym.tanh(parts[1], name="second")])


def variable_used_twice() -> mx.sym.Symbol:
    data = var("data")
    return mx.sym.elemwise_mul(mx.sym.elemwise_add(data, data), data)


def foreach() -> mx.sym.Symbol:
    def body(item: Any, state: Any) -> Any:
        out = mx.sym.FullyConnected(item, num_hidden=3, name="fc") + state
        return out, mx.sym.tanh(out)

    outputs, state = mx.sym.contrib.foreach(body, var("data"), var("state"))
    return mx.sym.Group([outputs, state])


def while_loop() -> mx.sym.Symbol:
    def step(count: Any, total: Any) -> Any:
        return [total], [count + 1, total + count]

    outputs, states = mx.sym.contrib.while_loop(
        lambda count, total: count < 4, step, [var("count"), var("total")], max_iterations=6
    )
    return mx.sym.Group([*outputs, *states])


def cond() -> mx.sym.Symbol:
    first, second = var("first"), var("second")
    return mx.sym.contrib.cond(mx.sym.sum(first) < 2, lambda: first * second, lambda: first + second)


def loop_in_loop() -> mx.sym.Symbol:
    def inner(item: Any, state: Any) -> Any:
        return item * 2, state + item

    def outer(item: Any, state: Any) -> Any:
        out, last = mx.sym.contrib.foreach(inner, item, state)
        return out, last

    outputs, state = mx.sym.contrib.foreach(outer, var("data"), var("state"))
    return mx.sym.Group([outputs, state])


def dtypes() -> mx.sym.Symbol:
    half = mx.sym.Cast(var("half", dtype="float16"), dtype="float64")
    double, index = var("double", dtype="float64"), var("index", dtype="int32")
    picked = mx.sym.take(double, index)
    return mx.sym.Group([mx.sym.broadcast_add(half, picked), mx.sym.Cast(index, dtype="int64")])


def annotated() -> mx.sym.Symbol:
    with mx.AttrScope(ctx_group="first", __note__='quotes " and \\ and \n lines'):
        weight = var("weight", lr_mult=2.0, wd_mult=0.0, init=mx.init.Uniform(0.1), shape=(4, 0))
        return mx.sym.FullyConnected(var("data"), weight=weight, num_hidden=4, name="fc", attr={"__mood__": "good"})


SYMBOLS: dict[str, Callable[[], mx.sym.Symbol]] = {
    "variable": lambda: var("alone"),
    "batch norm": batch_norm,
    "slices": slices,
    "variable used twice": variable_used_twice,
    "foreach": foreach,
    "while_loop": while_loop,
    "cond": cond,
    "loop in a loop": loop_in_loop,
    "custom": lambda: mx.sym.Custom(var("data"), op_type="echo_test_half", name="half"),
    "group": lambda: mx.sym.Group([mx.sym.tanh(var("a")), mx.sym.BlockGrad(var("b")), var("c")]),
    "same output twice": lambda: mx.sym.Group([mx.sym.tanh(var("a"), name="t")] * 2),
    "dtypes": dtypes,
    "annotated": annotated,
    "rnn": lambda: mx.sym.RNN(
        var("data"), var("parameters"), var("state"), var("cell"), state_size=4, num_layers=2, mode="lstm",
        state_outputs=True, name="rnn",
    ),
    "unknown shape": lambda: mx.sym.broadcast_add(var("data"), mx.sym.zeros(shape=(0, 4)), name="sum"),
    "internals": lambda: batch_norm().get_internals(),
    "twice the same name": lambda: mx.sym.tanh(mx.sym.tanh(var("data"), name="same"), name="same"),
    **{f"model {name}": (lambda build=build: build().symbol) for name, build in SMALL.items()},
}  # fmt: skip


def without_empty_attrs(value: Any) -> Any:
    """MXNet leaves the attributes of a graph out where there are none."""
    if isinstance(value, dict):
        items = value.items()
        return {key: without_empty_attrs(item) for key, item in items if (key, item) != ("attrs", {})}
    return [without_empty_attrs(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(params=SYMBOLS)
def symbol(request: pytest.FixtureRequest) -> mx.sym.Symbol:
    with mx.name.NameManager():
        return SYMBOLS[request.param]()


def test_json_of_a_symbol_is_kept_to_the_last_character(symbol: mx.sym.Symbol) -> None:
    assert symbol_of(graph_of(symbol)).tojson() == symbol.tojson()


def test_graph_survives_json(symbol: mx.sym.Symbol) -> None:
    graph = graph_of(symbol)
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    assert without_empty_attrs(graph.to_json()) == without_empty_attrs(json.loads(symbol.tojson()))


def test_graph_survives_its_text(symbol: mx.sym.Symbol) -> None:
    graph = graph_of(symbol)
    graph = graph.with_attrs({0: {"__text__": 'quotes " and \\\\, a tab \t, \x01 and \u20ac'}})
    numbered = graph.with_names([f"n{number}" for number in range(len(graph.nodes))])
    assert Graph.from_json(json.loads(graph.to_text())) == graph
    assert Graph.from_json(json.loads(graph.to_text(numbered=True))) == numbered


def test_interface_is_kept(symbol: mx.sym.Symbol) -> None:
    back = symbol_of(graph_of(symbol))
    assert back.list_arguments() == symbol.list_arguments()
    assert back.list_auxiliary_states() == symbol.list_auxiliary_states()
    assert back.list_outputs() == symbol.list_outputs()
    assert back.attr_dict() == symbol.attr_dict()


@pytest.mark.parametrize("name", ["Überlänge", "句", "a\x7fb", "a\x07b", 'quote " slash / \\ tab \t line \r\n'])
def test_names_of_all_scripts(name: str) -> None:
    symbol = mx.sym.tanh(mx.sym.var("data"), name=name)
    assert mx.sym.load_json(symbol.tojson()).list_outputs() == [f"{name}_output"], "as MXNet itself has it"
    assert symbol_of(graph_of(symbol)).list_outputs() == [f"{name}_output"]


def test_subgraphs_are_graphs() -> None:
    (loop,) = (node for node in graph_of(loop_in_loop()).nodes if node.op == "_foreach")
    (inner,) = (node for node in loop.subgraphs[0].nodes if node.op == "_foreach")
    assert {node.op for node in inner.subgraphs[0].nodes} >= {"_mul_scalar", "elemwise_add"}


def test_control_dependencies_are_kept() -> None:
    value = graph_of(mx.sym.tanh(mx.sym.exp(var("data"), name="first"), name="second")).to_json()
    value["nodes"][2]["inputs"] = [[0, 0, 0]]
    value["nodes"][2]["control_deps"] = [1]
    graph = Graph.from_json(value)
    assert graph.nodes[2].control_deps == (1,)
    assert graph_of(symbol_of(graph)) == graph


@pytest.mark.parametrize("key", ["attr", "param"])
def test_files_of_older_versions_are_read(key: str) -> None:
    value = {
        "nodes": [
            {"op": "null", "name": "data", "inputs": [], "backward_source_id": -1},
            {"op": "Activation", "name": "act", key: {"act_type": "tanh"}, "inputs": [[0, 0]]},
        ],
        "arg_nodes": [0],
        "heads": [[1, 0]],
    }
    graph = Graph.from_json(value)
    assert graph.nodes[1] == Node("Activation", "act", (Entry(0),), attrs={"act_type": "tanh"})
    assert graph.row_ptr == (0, 1, 2)
    assert symbol_of(graph).list_outputs() == ["act_output"]


def test_node_row_ptr_counts_outputs() -> None:
    graph = graph_of(slices())
    assert [graph.num_outputs(number) for number in range(len(graph.nodes))] == [1, 3, 1]
    assert graph.heads == (Entry(1, 0), Entry(1, 1), Entry(1, 2), Entry(2, 0))


# Changing a graph gives another one --------------------------------------------------------------------------


def test_with_attrs_adds_attributes_to_a_copy() -> None:
    graph = graph_of(batch_norm())
    conv = next(number for number, node in enumerate(graph.nodes) if node.op == "Convolution")
    changed = graph.with_attrs({conv: {"mark": "1"}})
    assert changed.nodes[conv].attrs == {**graph.nodes[conv].attrs, "mark": "1"}
    assert "mark" not in graph.nodes[conv].attrs
    assert [node for node in changed.nodes if node.op != "Convolution"] == [
        node for node in graph.nodes if node.op != "Convolution"
    ]


def test_with_names_needs_one_for_each_node() -> None:
    graph = graph_of(variable_used_twice())
    assert [node.name for node in graph.with_names(["a", "b", "c"]).nodes] == ["a", "b", "c"]
    with pytest.raises(GraphError, match="expected 3 names, got 2"):
        graph.with_names(["a", "b"])


def test_graph_prints_as_the_golden_text(golden: Callable[[str, str], None]) -> None:
    with mx.name.NameManager():
        parts = mx.sym.split(mx.sym.FullyConnected(var("data"), num_hidden=8, name="fc"), num_outputs=2, name="parts")
        loop, _ = mx.sym.contrib.foreach(lambda item, state: (item + state, state), parts[0], parts[1], name="loop")
        text = str(graph_of(mx.sym.Group([loop, mx.sym.BatchNorm(parts[1], name="norm")])))
    golden("graph.txt", text)


# Broken JSON -------------------------------------------------------------------------------------------------


def chain() -> Any:
    """data -> first -> second, as JSON."""
    return graph_of(mx.sym.exp(mx.sym.tanh(var("data"), name="first"), name="second")).to_json()


def damaged(path: tuple[Any, ...], new: Any) -> Any:
    """The chain with another value at this place; without the key where it is `del`."""
    value = chain()
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if new is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


@pytest.mark.parametrize(
    ("path", "new", "name"),
    [
        pytest.param(("nodes", 1, "inputs"), [[2, 0, 0]], "first", id="cycle"),
        pytest.param(("nodes", 1, "inputs"), [[1, 0, 0]], "first", id="reads itself"),
        pytest.param(("nodes", 2, "inputs"), [[7, 0, 0]], "second", id="reads what is not there"),
        pytest.param(("nodes", 2, "inputs"), [[-1, 0, 0]], "second", id="reads a negative node"),
        pytest.param(("nodes", 2, "inputs"), [[1, 1, 0]], "second", id="reads an output that is not there"),
        pytest.param(("nodes", 2, "inputs"), [[1, -1, 0]], "second", id="reads a negative output"),
        pytest.param(("nodes", 1, "control_deps"), [2], "first", id="waits for a later node"),
        pytest.param(("nodes", 1, "colour"), "red", "first", id="unknown field"),
        pytest.param(("nodes", 1, "attrs"), {"axis": 1}, "first", id="attribute that is no text"),
        pytest.param(("nodes", 1, "attrs"), ["axis"], "first", id="attributes that are a list"),
        pytest.param(("nodes", 1, "op"), KeyError, "first", id="no operator"),
        pytest.param(("nodes", 1, "inputs"), KeyError, "first", id="no inputs"),
        pytest.param(("nodes", 1, "inputs"), 5, "first", id="inputs that are a number"),
        pytest.param(("nodes", 1, "inputs"), ["abc"], "first", id="inputs that are texts"),
        pytest.param(("nodes", 1, "inputs"), [[0, 0, 0, 0]], "first", id="input of four numbers"),
        pytest.param(("nodes", 1, "subgraphs"), [{"nodes": 1}], "first", id="broken subgraph"),
        pytest.param(("node_row_ptr", 2), 0, "first", id="falling row pointer"),
    ],
)
def test_broken_node_is_named(path: tuple[Any, ...], new: Any, name: str) -> None:
    with pytest.raises(GraphError, match=name):
        Graph.from_json(damaged(path, new))


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        pytest.param(("nodes",), KeyError, "it lacks nodes", id="no nodes"),
        pytest.param(("heads",), KeyError, "it lacks heads", id="no heads"),
        pytest.param(("arg_nodes",), KeyError, "it lacks arg_nodes", id="no arg_nodes"),
        pytest.param(("heads",), [[9, 0, 0]], "there is no node 9", id="head that is not there"),
        pytest.param(("heads",), [[1, 4, 0]], "reads output 4 of 'first', which has 1", id="output that is not there"),
        pytest.param(("heads",), 3, "not an NNVM graph", id="heads that are a number"),
        pytest.param(("arg_nodes",), [1], "node 1 is not a variable", id="argument that is an operator"),
        pytest.param(("node_row_ptr",), [0, 1], "expected 4 numbers, got 2", id="row pointer too short"),
        pytest.param(("node_row_ptr",), ["a"], "not an NNVM graph", id="row pointer of texts"),
        pytest.param(("attrs",), "abc", "not an NNVM graph", id="graph attributes that are a text"),
        pytest.param(("nodes",), [5], "node 0", id="node that is a number"),
        pytest.param(("nodes",), [[]], "node 0", id="node that is a list"),
    ],
)
def test_broken_graph_is_refused(path: tuple[Any, ...], new: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.from_json(damaged(path, new))


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, [1, 2]])
def test_value_that_is_no_graph_raises_graph_error(value: Any) -> None:
    with pytest.raises(GraphError, match="not an NNVM graph"):
        Graph.from_json(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, item in items for deeper in places(item, (*path, key)))]


def test_no_damage_ends_in_another_exception() -> None:
    whole = graph_of(foreach()).to_json()
    generator = random.Random(0)
    junk: list[Any] = [None, True, -1, 10**6, 0.5, "", "text", [], {}, [[]], [[1]], {"a": 1}]
    refused = 0
    for path in places(whole)[1:]:
        value = copy.deepcopy(whole)
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = generator.choice(junk)
        try:
            Graph.from_json(value)
        except GraphError:
            refused += 1
    assert refused > 100


# Planning needs no framework ---------------------------------------------------------------------------------

ROOMS = [
    "echo", "echo.ir.graph", "echo.ir.training_graph", "echo.plans.plan", "echo.plans.options", "echo.errors",
    "echo.ir.ops",
    "echo.pipeline", "echo.native", "echo.plans.text", "echo.system.terminal",
    *(
        f"echo.{path.parent.name}.{path.stem}"
        for room in ("passes", "policies", "estimators")
        for path in sorted((ROOT / "echo" / room).glob("[a-z]*.py"))
    ),
]  # fmt: skip


@pytest.mark.parametrize("modules", [["echo"], ROOMS], ids=["echo", "all rooms"])
def test_planning_imports_no_mxnet(modules: list[str]) -> None:
    code = (
        f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
        "import echo; echo.Plan, echo.Options\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('mxnet', 'torch', 'pynvml')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
