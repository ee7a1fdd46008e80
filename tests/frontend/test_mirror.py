"""Planning without the hook: the forward graph, and choices that MXNet itself evaluates."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest

from echo.errors import UnsupportedError
from echo.frontend.mirror import MirrorEvaluator, forward_graph
from tests.support.cases import Case, model_case


@pytest.fixture(scope="module")
def case() -> Case:
    return model_case("lm")


def test_forward_nodes_have_the_types_of_the_training_graph(case: Case) -> None:
    forward = forward_graph(case.graph, case.binding, mx.cpu())
    by_original = {node.original: node for node in case.training.nodes if node.forward and node.original is not None}
    assert [node.name for node in forward.nodes] == [node.name for node in case.graph.nodes]
    for number, node in by_original.items():
        shown = node.outputs[: len(forward.nodes[number].outputs)]
        assert forward.nodes[number].outputs[: len(shown)] == shown
    assert all(node.forward for node in forward.nodes)


def test_forward_graph_of_untrained_symbol_raises_unsupported_error(case: Case) -> None:
    untrained = replace(case.binding, grad_req=("null",) * len(case.binding.grad_req))
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        forward_graph(case.graph, untrained, mx.cpu())


def test_a_choice_costs_its_nodes_once(case: Case) -> None:
    forward = forward_graph(case.graph, case.binding, mx.cpu())
    seconds = [float(number) for number in range(len(forward.nodes))]
    evaluator = MirrorEvaluator(case.graph, case.binding, mx.cpu(), forward, seconds)
    light = [k for k, node in enumerate(forward.nodes) if node.op in ("Activation", "tanh", "sigmoid", "elemwise_mul")]
    choice = np.zeros(evaluator.entries, np.uint8)
    choice[[forward.first_entry[number] for number in light]] = 1
    assert evaluator.executed(choice).nonzero()[0].tolist() == light
    nothing, everything = (evaluator.evaluate(one, (16, 1)) for one in (0 * choice, choice))
    assert (nothing.seconds, everything.seconds) == (0.0, float(sum(light)))
    assert len(everything.totals) == 2
    assert nothing.bytes % (1 << 20) == 0
    assert nothing.totals[0] == forward.planned_bytes
