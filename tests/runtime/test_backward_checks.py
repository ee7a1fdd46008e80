"""Variables that a plan reads again in backward, and what is said where one was written too early."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Graph
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.runtime.backward_checks import messages_of, needs_training, variables_read_in_backward, written_early


def network(**norm: object) -> Graph:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    hidden = mx.sym.BatchNorm(hidden, name="norm", **norm)
    return graph_of(mx.sym.broadcast_mul(mx.sym.tanh(hidden, name="tanh"), mx.sym.var("scale"), name="out"))


def marked(graph: Graph, *names: str) -> Graph:
    return graph.with_attrs({k: {PLAN_ATTRIBUTE: "0"} for k, node in enumerate(graph.nodes) if node.name in names})


def again(graph: Graph) -> dict[str, list[str]]:
    found = variables_read_in_backward(graph, graph)
    return {graph.nodes[k].name: [graph.nodes[reader].name for reader in readers] for k, readers in found.items()}


def test_variables_of_what_runs_again() -> None:
    graph = network()
    assert again(graph) == {}
    assert again(marked(graph, "tanh")) == {}, "it reads a map"
    assert again(marked(graph, "fc", "out")) == {
        "data": ["fc"], "fc_weight": ["fc"], "fc_bias": ["fc"], "scale": ["out"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "read"),
    [({}, ["norm_beta"]), ({"fix_gamma": True}, ["norm_beta"]), ({"fix_gamma": False}, ["norm_beta", "norm_gamma"])],
)
def test_statistics_and_fixed_gammas_are_not_watched(norm: dict[str, object], read: list[str]) -> None:
    assert sorted(again(marked(network(**norm), "norm"))) == read


def test_fused_operators_compute_from_their_inputs() -> None:
    graph = network()
    fused = graph_of(mx.sym.tanh(mx.sym.var("x"), name="it"))
    nodes = (fused.nodes[0], fused.nodes[1]._with(op="_echo_relu"))
    found = Graph(nodes, fused.heads, fused.arg_nodes, fused.row_ptr, fused.attrs)
    assert again(found) == {"x": ["it"]}
    assert "or plan with" not in str(messages_of(graph, {}))
    (said,) = messages_of(found, variables_read_in_backward(found, found)).values()
    assert "or plan with fuse=False, or train without echo (ECHO=0)" in said


def test_variables_read_through_inserted_nodes_are_found() -> None:
    """His gradients read the variable in backward; a copy of it has the numbers of the forward pass."""
    x, y, z = map(mx.sym.var, "xyz")
    original = graph_of(mx.sym.batch_dot(x, mx.sym.sigmoid(y, name="his") + z, name="it"))
    made = mx.sym.identity(x, name="it_copy") + mx.sym.ones_like(z, name="it_ones")
    bound = graph_of(mx.sym.elemwise_mul(made, mx.sym.sigmoid(y, name="his"), name="it"))
    nodes = tuple(node._with(op="_echo_weighted_sum") if node.name == "it" else node for node in bound.nodes)
    graph = Graph(nodes, bound.heads, bound.arg_nodes, bound.row_ptr, bound.attrs)
    found = {graph.nodes[variable].name for variable in variables_read_in_backward(graph, original)}
    assert found == {"x"}, "not y, which his own node reads, nor z, of which only the shape is read"


def test_masks_and_signs_of_a_plan_need_a_forward_pass_in_training() -> None:
    x = mx.sym.Dropout(mx.sym.var("data"), name="drop")
    original = graph_of(mx.sym.Activation(mx.sym.BatchNorm(x, name="norm"), act_type="relu", name="act"))
    own = graph_of(mx.sym.contrib.BatchNormWithReLU(x, name="act"))
    dropped = next(node for node in original.nodes if node.name == "drop")
    assert not needs_training(original, original, [])
    assert needs_training(original, original, [dropped]), "recomputed from its mask"
    assert needs_training(own, original, []), "which took the place of two operators"
    assert not needs_training(own, own, []), "the user's own: MXNet's gradients read the same there"


def test_the_text_names_what_to_keep() -> None:
    graph = marked(network(), "fc", "out")
    said = messages_of(graph, variables_read_in_backward(graph, graph))
    assert set(said) == {"data", "fc_weight", "fc_bias", "scale"}
    assert said["scale"].startswith(written_early("scale"))
    assert "the plan computes 'out' (broadcast_mul) from it again in backward" in said["scale"]
    assert "keep=('out',)" in said["scale"]
    several = messages_of(graph, {0: (3, 3, 3, 3)})
    assert " and 3 more from it again" in several["data"]
    assert "'...')" in several["data"]
