"""What is read of MXNet's own passes: a graph with the user's names, its bytes, and graphs that are refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Callable

import mxnet as mx
import pytest

from echo.errors import GraphError, UnsupportedError
from echo.frontend import capture
from echo.frontend.capture import (
    bind_without_memory,
    captured_graph,
    chunk_bytes,
    chunks_in,
    graph_in,
    mxnet_memory_plan,
    planned_megabytes,
    training_graph,
)
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding, symbol_of
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.ir.training_graph import TrainingGraph
from echo.system.threads import without_forks

SHAPES = {"data": (64, 128)}


def network() -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=512, name="fc")
    hidden = mx.sym.tanh(hidden, name="same", attr={"__mine__": "yes"})
    return mx.sym.exp(mx.sym.sin(hidden, name="same"), name="last")


GRAPH = graph_of(network())
BINDING = infer_binding(network(), SHAPES, grad_req={"data": "null", "fc_weight": "write", "fc_bias": "add"})


@pytest.fixture(scope="module")
def training() -> TrainingGraph:
    assert install_hook() == ""
    return training_graph(GRAPH, BINDING, mx.cpu())


def test_forward_nodes_are_the_users(training: TrainingGraph) -> None:
    forward = [node for node in training.nodes if node.forward]
    assert [(node.original, node.name, node.op) for node in forward] == [
        (number, node.name, node.op) for number, node in enumerate(GRAPH.nodes)
    ]
    assert forward[4].attrs["__mine__"] == "yes", "names may come twice"
    assert [kind.shape for kind in forward[3].outputs] == [(64, 512)]


def test_gradients_have_the_names_that_mxnet_gives(training: TrainingGraph) -> None:
    backward = {node.name: node for node in training.nodes if not node.forward and not node.is_variable}
    assert "fc_backward" in backward
    assert all(node.original is None for node in backward.values())
    assert not any(name.startswith("n1") for name in backward)


def test_bytes_are_those_of_the_planner(training: TrainingGraph) -> None:
    assert install_hook() == ""
    asked = mxnet_memory_plan(network(), BINDING, mx.cpu(), hook=True)
    assert asked.bytes == training.planned_bytes
    assert asked.chunks == chunk_bytes(network(), BINDING, mx.cpu()) == chunks_in(
        captured_graph(GRAPH, BINDING, mx.cpu())
    )  # fmt: skip
    printed = planned_megabytes(bind_without_memory(network(), BINDING, mx.cpu()))
    assert mxnet_memory_plan(network(), BINDING, mx.cpu(), hook=False).bytes == (printed + 1) << 20
    assert printed << 20 <= sum(asked.chunks) < (printed + 1) << 20


def test_marks_are_applied(training: TrainingGraph) -> None:
    (number,) = (k for k, node in enumerate(GRAPH.nodes) if node.op == "tanh")
    marked = training_graph(GRAPH, BINDING, mx.cpu(), {number: {PLAN_ATTRIBUTE: "0"}})
    assert len(marked.nodes) == len(training.nodes) + 1
    assert [node.op for node in marked.nodes if not node.forward].count("tanh") == 1


def test_capture_of_untrained_graph_raises_unsupported_error() -> None:
    untrained = replace(BINDING, grad_req=("null",) * 3)
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        captured_graph(GRAPH, untrained, mx.cpu())


def test_arguments_in_another_order() -> None:
    assert install_hook() == ""
    captured = captured_graph(GRAPH, BINDING, mx.cpu())
    turned = replace(GRAPH, arg_nodes=(GRAPH.arg_nodes[1], GRAPH.arg_nodes[0], GRAPH.arg_nodes[2]))
    with pytest.raises(GraphError, match=r"binds the arguments in another order: expected .*fc_weight.*data"):
        graph_in(captured, turned)


def test_a_printout_that_is_none() -> None:
    class Silent:
        def debug_str(self) -> str:
            return "nothing"

    with pytest.raises(GraphError, match="expected a line 'Total N MB allocated'"):
        planned_megabytes(Silent())


def test_a_bind_owns_no_memory() -> None:
    large = infer_binding(network(), {"data": (1 << 20, 1 << 10)})
    executor = bind_without_memory(symbol_of(GRAPH), large, mx.cpu())
    assert planned_megabytes(executor) >= 1 << 11


ASKS = pytest.mark.parametrize("ask", [
    lambda: training_graph(GRAPH, BINDING, mx.cpu()),
    lambda: mxnet_memory_plan(symbol_of(GRAPH), BINDING, mx.cpu(), hook=True),
    lambda: mxnet_memory_plan(symbol_of(GRAPH), BINDING, mx.cpu(), hook=False),
    lambda: chunk_bytes(symbol_of(GRAPH), BINDING, mx.cpu()),
], ids=["graph", "bytes", "printout", "chunks"])  # fmt: skip


@ASKS
def test_no_fork_of_another_thread_falls_into_a_bind(ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    entered, waits = threading.Event(), []

    def enter() -> None:
        with without_forks():
            entered.set()

    def watched(*arguments: Any) -> mx.executor.Executor:
        threading.Thread(target=enter, daemon=True).start()
        waits.append(not entered.wait(0.2))
        return bind_without_memory(*arguments)

    assert install_hook() == ""
    monkeypatch.setattr(capture, "bind_without_memory", watched)
    ask()
    assert waits == [True]
    assert entered.wait(60)


def test_executor_of_a_large_graph_is_freed_while_the_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no fork falls into that."""
    go_on, freed, forks = threading.Event(), threading.Event(), list[bool]()

    def slowly(executor: mx.executor.Executor) -> None:
        assert go_on.wait(60)
        original(executor)
        freed.set()

    def enter() -> None:
        with without_forks():
            forks.append(freed.is_set())

    original = capture.free
    monkeypatch.setattr(capture, "free", slowly)
    monkeypatch.setattr(capture, "LARGE", 2)
    assert install_hook() == ""
    found = training_graph(GRAPH, BINDING, mx.cpu())
    assert not freed.is_set()
    go_on.set()
    assert freed.wait(60)
    entering = threading.Thread(target=enter)
    entering.start()
    entering.join(60)
    assert forks == [True]
    monkeypatch.undo()
    assert training_graph(GRAPH, BINDING, mx.cpu()) == found


@ASKS
def test_an_executor_is_freed_where_an_interrupt_is_heard(
    ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Any] = []
    monkeypatch.setattr(mx.executor.Executor, "__del__", lambda executor: left.append(executor.handle))
    assert install_hook() == ""
    ask()
    assert left == [None]
