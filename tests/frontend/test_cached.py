"""How a CachedOp runs a graph: operators without state, outputs and accumulations by its own rules.

`tests/estimators/test_runners.py` holds the bytes against MXNet's CachedOp.
"""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.frontend.cached import accumulations, as_cached, as_stateful, runner_of, stateless
from echo.frontend.symbols import graph_of
from echo.ir.op_spec import COPY_ATTRIBUTE
from echo.ir.training_graph import DYNAMIC, EXECUTOR, SHAPED, STATIC
from tests.support.cases import special_case


@pytest.mark.parametrize(
    ("alloc", "shape", "runner"),
    [(False, False, DYNAMIC), (False, True, DYNAMIC), (True, False, STATIC), (True, True, SHAPED)],
)
def test_flags_of_a_block_decide_its_runner(alloc: bool, shape: bool, runner: str) -> None:
    assert runner_of(alloc, shape) == runner


def sliced(parts: int) -> mx.sym.Symbol:
    return mx.sym.Group(list(mx.sym.SliceChannel(mx.sym.var("x"), num_outputs=parts, axis=1, name="parts")))


def test_slices_of_gates_keep_no_state() -> None:
    graph = stateless(graph_of(sliced(4)))
    node = graph.nodes[-1]
    assert (node.op, node.name, node.attrs["sections"], node.attrs["axis"]) == ("_split_v2", "parts", "4", "1")
    assert "num_outputs" not in node.attrs
    assert node.attrs[COPY_ATTRIBUTE] == "all"


def test_long_runs_of_steps_stay() -> None:
    graph = graph_of(sliced(9))
    assert stateless(graph) is graph


def test_two_slices_of_one_array_stay_two() -> None:
    both = [mx.sym.SliceChannel(mx.sym.var("x"), num_outputs=2, name=name)[0] for name in "ab"]
    nodes = [node for node in stateless(graph_of(mx.sym.Group(both))).nodes if not node.is_variable]
    assert nodes[0].attrs != nodes[1].attrs


@pytest.mark.parametrize(
    ("value", "op", "expected"),
    [
        ("parts_2", "_split_v2", ("parts_output2", "SliceChannel")),
        ("parts_backward_0", "_split_v2_backward", ("parts_backward_data", "_backward_SliceChannel")),
        ("parts_data", "tanh", ("parts_data", "tanh")),
    ],
)
def test_monitors_see_the_users_operator(value: str, op: str, expected: tuple[str, str]) -> None:
    assert as_stateful("parts", value, op) == expected


@pytest.mark.parametrize("runner", [STATIC, DYNAMIC])
def test_outputs_are_not_its_own_and_gradients_of_outputs_not_copied(runner: str) -> None:
    training = special_case("two outputs").training
    cached = as_cached(training, runner, 16)
    assert cached.runner == runner
    heads = cached.outputs[: cached.num_forward_outputs]
    assert all(entry.index in cached.nodes[entry.node].external for entry in heads)
    copies = [sum(node.op == "_identity_with_attr_like_rhs" for node in each.nodes) for each in (training, cached)]
    assert copies[1] < copies[0]


def test_a_dynamic_cached_op_adds_nothing_in_place() -> None:
    training = special_case("many readers").training
    assert any(training.accumulations)
    chunk = list(range(training.first_entry[-1]))
    assert accumulations(as_cached(training, DYNAMIC, 16), chunk) == ()
    apart = accumulations(training, chunk)
    assert training.runner == EXECUTOR
    assert len(apart) == len(training.accumulations)
    assert not any(apart), "what shares no memory is not added in place"
    assert all(accumulations(training, [0] * len(chunk))), "and what shares it is"
