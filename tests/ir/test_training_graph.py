"""The training graph: its types, its JSON, and that it is what MXNet's own executor would run."""

from __future__ import annotations

import re

import mxnet as mx
import numpy as np
import pytest

from echo.errors import GraphError, UnsupportedError
from echo.frontend.capture import bind_without_memory, planned_megabytes
from echo.ir.graph import Entry
from echo.ir.training_graph import Runner, TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from tests.support.cases import case_of, model_case
from tests.support.made_graphs import Builder

MODELS = ["nmt", "lm", "resnet50_v2", "densenet121"]


def perceptron() -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc1")
    hidden = mx.sym.Activation(hidden, act_type="tanh", name="act")
    hidden = mx.sym.BatchNorm(hidden, fix_gamma=False, name="norm")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=4, name="fc2"), name="softmax")


SHAPES = {"data": (6, 5), "softmax_label": (6,)}


# Types -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "name", "size"),
    [
        (0, "float32", 4), (1, "float64", 8), (2, "float16", 2), (3, "uint8", 1), (4, "int32", 4), (5, "int8", 1),
        (6, "int64", 8), (7, "bool", 1), (12, "bfloat16", 2),
    ],
)  # fmt: skip
def test_sizes_of_types(flag: int, name: str, size: int) -> None:
    kind = TensorType((3, 5), flag)
    assert (kind.dtype, kind.itemsize, kind.elements, kind.bytes) == (name, size, 15, 15 * size)
    assert str(kind) == f"{name}[3,5]"


def test_flags_are_those_of_mxnet() -> None:
    from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP

    for flag, kind in _DTYPE_MX_TO_NP.items():
        if flag >= 0 and np.dtype(kind).kind != "V":  # numpy has no bfloat16
            ours = TensorType((), flag)
            assert ours.dtype == np.dtype(kind).name
            assert ours.itemsize == np.dtype(kind).itemsize


@pytest.mark.parametrize("flag", [-1, 13, 100])
def test_unknown_type_is_refused(flag: int) -> None:
    with pytest.raises(GraphError, match=f"unknown MXNet type flag {flag}"):
        TensorType((1,), flag)


def test_scalars_and_empty_arrays_have_sizes() -> None:
    assert TensorType(()).bytes == 4
    assert TensorType((3, 0, 2)).bytes == 0


# Structure ---------------------------------------------------------------------------------------------------


def small_graph() -> tuple[TrainingGraph, dict[str, Entry]]:
    """x -> tanh -> mul(tanh, x); the gradient of mul reads x's shape alone."""
    b = Builder()
    x = b.variable("x", 4)
    y = b.forward("tanh", "tanh", (4,), x)
    z = b.forward("elemwise_mul", "mul", (4,), y, x)
    head = b.variable("head", 4, forward=False)
    gy = b.backward("_backward_mul", "gmul", (4,), head, y, x, shape_only=frozenset({2}), control_deps=(z.node,))
    gx = b.backward("_backward_tanh", "gtanh", (4,), gy, y, control_deps=(y.node,), external=frozenset({0}))
    return b.graph([z, gx]), {"x": x, "y": y, "z": z, "gy": gy, "gx": gx}


def test_backward_readers_leave_shape_only_reads_out() -> None:
    training, at = small_graph()
    assert training.backward_readers == {at["y"]: (at["gy"].node, at["gx"].node)}


def test_entries_are_numbered_in_node_order() -> None:
    b = Builder()
    x = b.variable("x", 4)
    b.nodes.append(TrainingNode("SliceChannel", "parts", (TensorType((2,)), TensorType((2,))), (x,)))
    last = b.forward("tanh", "tanh", (2,), Entry(1, 1))
    training = b.graph([last])
    assert training.first_entry == (0, 1, 3, 4)
    assert [training.entry_id(entry) for entry in (x, Entry(1, 0), Entry(1, 1), last)] == [0, 1, 2, 3]
    assert training.type_of(Entry(1, 1)) == TensorType((2,))
    assert [number for number, _ in training.operators()] == [1, 2]


@pytest.mark.parametrize("entry", [Entry(5, 0), Entry(1, 0), Entry(0, 1), Entry(-1, 0), Entry(0, -1)])
def test_inputs_must_be_there(entry: Entry) -> None:
    b = Builder()
    b.variable("x", 4)
    with pytest.raises(GraphError, match=r"node 1 \('tanh'\): no output"):
        b.graph([b.forward("tanh", "tanh", (4,), entry)])


@pytest.mark.parametrize("output", [Entry(7, 0), Entry(1, 3), Entry(-1, 0)])
def test_outputs_must_be_there(output: Entry) -> None:
    b = Builder()
    b.forward("tanh", "tanh", (4,), b.variable("x", 4))
    with pytest.raises(GraphError):
        b.graph([output])


# What MXNet makes of a symbol --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_forward_nodes_are_the_users(name: str) -> None:
    case = model_case(name)
    forward = [node for node in case.training.nodes if node.forward]
    for node in forward:
        if node.original is not None:
            own = case.graph.nodes[node.original]
            assert (node.op, node.name, dict(node.attrs)) == (own.op, own.name, dict(own.attrs))
    originals = [node.original for node in forward if node.original is not None]
    assert len(originals) == len(set(originals))
    operators = {number for number, node in enumerate(case.graph.nodes) if not node.is_variable}
    assert operators <= set(originals)


@pytest.mark.parametrize("name", MODELS)
def test_backward_nodes_are_all_that_gradients_add(name: str) -> None:
    training = model_case(name).training
    for number, node in enumerate(training.nodes):
        below = [entry.node for entry in node.inputs] + list(node.control_deps)
        assert all(child < number for child in below), "execution order is topological"
        if node.forward:
            assert all(training.nodes[child].forward for child in below)
    gradients = training.outputs[training.num_forward_outputs :]
    assert gradients
    assert not any(training.nodes[entry.node].forward for entry in gradients)
    assert all(training.nodes[entry.node].forward for entry in training.outputs[: training.num_forward_outputs])
    assert any(node.op.startswith("_backward_") for node in training.nodes)


@pytest.mark.parametrize("name", MODELS)
def test_execution_order_is_that_of_the_printout(name: str) -> None:
    case = model_case(name)
    text = bind_without_memory(case.symbol, case.binding, mx.cpu()).debug_str()
    printed = re.findall(r"^Op:([^,\s]+)", text, re.MULTILINE)
    assert printed == [node.op for _, node in case.training.operators()]


@pytest.mark.parametrize("name", MODELS)
def test_planned_bytes_are_the_executors_own(name: str) -> None:
    case = model_case(name)
    executor = bind_without_memory(case.symbol, case.binding, mx.cpu())
    assert case.training.planned_bytes >> 20 == planned_megabytes(executor)


def test_shapes_and_types_are_those_mxnet_infers() -> None:
    case = case_of(perceptron(), SHAPES)
    internals = case.symbol.get_internals()
    _, shapes, _ = internals.infer_shape(**SHAPES)
    inferred = dict(zip(internals.list_outputs(), shapes))
    for node in case.training.nodes:
        if node.forward and not node.is_variable:
            assert node.outputs[0].shape == inferred[f"{node.name}_output"]


def test_types_other_than_float32() -> None:
    wide = mx.sym.Cast(mx.sym.var("half", dtype="float16"), dtype="float64", name="wide")
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.tanh(wide, name="tanh")))
    training = case_of(symbol, {"half": (3, 4)}, grad_req="write").training
    kinds = {node.name: node.outputs[0] for node in training.nodes if node.forward}
    assert (kinds["half"].dtype, kinds["half"].bytes) == ("float16", 24)
    assert (kinds["tanh"].dtype, kinds["tanh"].bytes) == ("float64", 96)


def test_gradients_of_arguments_are_not_the_planners() -> None:
    training = case_of(perceptron(), SHAPES).training
    for entry in training.outputs[training.num_forward_outputs :]:
        assert entry.index in training.nodes[entry.node].external


def test_operators_are_described() -> None:
    data = mx.sym.Dropout(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc"), p=0.5, name="drop")
    parts = mx.sym.SliceChannel(data, num_outputs=2, name="parts")
    norm = mx.sym.BatchNorm(parts[0], name="norm")
    symbol = mx.sym.MakeLoss(mx.sym.sum(norm) + mx.sym.sum(parts[1]))
    training = case_of(symbol, {"data": (6, 5)}).training
    by_name = {node.name: node for node in training.nodes if node.forward}
    assert by_name["drop"].random
    assert by_name["parts"].stateful
    assert by_name["norm"].mutates
    assert not any([by_name["fc"].random, by_name["fc"].stateful, by_name["fc"].mutates])
    assert len(by_name["parts"].outputs) == 2
    assert len(by_name["drop"].outputs) == 2  # the mask too


def test_names_need_not_be_unique() -> None:
    data = mx.sym.var("data")
    for _ in range(3):
        data = mx.sym.Activation(data, act_type="tanh", name="same")
    symbol = mx.sym.MakeLoss(mx.sym.sum(data, name="same"), name="same")
    case = case_of(symbol, {"data": (3, 4)}, grad_req="write")
    same = [node.original for node in case.training.nodes if node.forward and node.name == "same"]
    assert sorted(same) == [1, 2, 3, 4, 5]


def test_variable_named_like_a_number() -> None:
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.tanh(mx.sym.var("n2"), name="n0") * mx.sym.var("n1")))
    case = case_of(symbol, {"n2": (3,), "n1": (3,)}, grad_req="write")
    assert {node.name for node in case.training.nodes if node.forward} >= {"n0", "n1", "n2"}


def test_symbol_whose_output_is_used_again() -> None:
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc"), name="hidden")
    symbol = mx.sym.Group([hidden, mx.sym.tanh(hidden, name="top"), hidden])
    case = case_of(symbol, {"data": (6, 5)})
    assert case.training.num_forward_outputs == 3
    assert case.training.planned_bytes == case.mxnet_memory_plan(case.graph, 16)


# Gradient requests -------------------------------------------------------------------------------------------


def test_arguments_without_gradients_change_the_graph() -> None:
    symbol = perceptron()
    names = symbol.list_arguments()
    everything = case_of(symbol, SHAPES, grad_req={name: "write" for name in names}).training
    usual = case_of(symbol, SHAPES).training
    last = case_of(symbol, SHAPES, grad_req={name: "write" if name.startswith("fc2") else "null" for name in names})
    counts = [len(training.outputs) - 1 for training in (everything, usual, last.training)]
    assert counts == [len(names), len(names) - len(SHAPES), 2]
    assert len(last.training.nodes) < len(usual.nodes)
    assert not any(node.op == "_backward_Activation" for node in last.training.nodes)
    assert last.training.planned_bytes < usual.planned_bytes


def test_adding_up_gradients_plans_as_writing_them() -> None:
    write, add = (case_of(perceptron(), SHAPES, grad_req=request).training for request in ("write", "add"))
    assert [node.op for node in write.nodes] == [node.op for node in add.nodes]


def test_untrained_graph_raises_unsupported_error() -> None:
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        case_of(perceptron(), SHAPES, grad_req="null")


@pytest.mark.parametrize(
    ("alloc", "shape", "runner"),
    [
        (False, False, Runner.DYNAMIC),
        (False, True, Runner.DYNAMIC),
        (True, False, Runner.STATIC),
        (True, True, Runner.SHAPED),
    ],
)
def test_flags_of_a_block_decide_its_runner(alloc: bool, shape: bool, runner: Runner) -> None:
    assert Runner.of_flags(alloc, shape) == runner
