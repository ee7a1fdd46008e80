"""The small graph of a microbenchmark: its variables, its copies, and the operator that a gradient belongs to."""

from __future__ import annotations

import json
from typing import Any

import mxnet as mx
import pytest

from echo.meter.capi import Microbenchmark, Variable, variable

TANH = Microbenchmark("tanh", {}, (Variable((2, 3)),))
GRADIENT = Microbenchmark(
    "_backward_tanh", {}, (Variable((2, 3)), 0), (0,), "tanh", (Variable((2, 3)),), hot=False, bytes=48,
)  # fmt: skip


@pytest.mark.parametrize("microbenchmark", [TANH, GRADIENT])
def test_json_there_and_back(microbenchmark: Microbenchmark) -> None:
    assert Microbenchmark.from_json(json.loads(json.dumps(microbenchmark._asdict()))) == microbenchmark
    assert variable([[2, 3], 4, True, 5]) == Variable((2, 3), 4, True, 5)


def ops(graph: Any) -> list[str]:
    return [node["op"] for node in graph["nodes"]]


def test_hot_copies_read_the_same_inputs() -> None:
    graph = TANH.graph(3)
    assert TANH.variables(3) == {"copy0_0": Variable((2, 3))}
    assert ops(graph) == ["null", "tanh", "tanh", "tanh"]
    assert graph["heads"] == [[1, 0, 0], [2, 0, 0], [3, 0, 0]]
    assert len({json.dumps(node["attrs"]) for node in graph["nodes"][1:]}) == 3, "MXNet would merge equal ones"


def test_cold_copies_have_inputs_of_their_own() -> None:
    cold = TANH._replace(hot=False)
    assert list(cold.variables(2)) == ["copy0_0", "copy1_0"]
    assert [node["inputs"] for node in cold.graph(2)["nodes"][2:]] == [[[0, 0, 0]], [[1, 0, 0]]]


def test_a_gradient_reads_outputs_of_its_operator() -> None:
    graph = GRADIENT.graph(2)
    assert ops(graph) == ["null", "null", "null", "tanh", "_backward_tanh", "_backward_tanh"]
    assert graph["nodes"][3]["inputs"] == [[0, 0, 0]]
    assert graph["nodes"][5]["inputs"] == [[2, 0, 0], [3, 0, 0]]
    assert graph["nodes"][5]["control_deps"] == [3]
    assert graph["heads"][0] == [3, 0, 0]
    assert ops(GRADIENT.graph(0)) == ["null", "tanh"]


def test_mxnet_loads_it() -> None:
    symbol = mx.sym.load_json(json.dumps(TANH.graph(2)))
    assert symbol.list_arguments() == ["copy0_0"]
    assert len(symbol.list_outputs()) == 2


def test_only_outputs_that_are_read_are_heads() -> None:
    both = Microbenchmark("SliceChannel", {"num_outputs": "3"}, (Variable((2, 3)),), outputs=(0, 2))
    assert both.graph(1)["heads"] == [[1, 0, 0], [1, 2, 0]]


def test_a_node_overwrites_a_copy_of_its_input() -> None:
    over = GRADIENT._replace(over=0)
    graph = over.graph(2)
    assert ops(graph)[3:] == ["tanh", "_copy", "_backward_tanh", "_copy", "_backward_tanh"]
    assert [graph["nodes"][number]["inputs"][0][0] for number in (4, 5, 6, 7)] == [1, 4, 2, 6]
    assert [head[0] for head in graph["heads"]] == [3, 5, 7], "what is overwritten is no output"
    overhead = over.graph(2, overhead=True)
    assert ops(overhead)[3:] == ["tanh", "_copy", "_copy"]
    assert [head[0] for head in overhead["heads"]] == [3, 4, 5]
    assert [node["op"] for node in over.graph(0)["nodes"]] == ["null", "tanh"]


def test_mxnet_writes_over_the_copy() -> None:
    over = Microbenchmark("tanh", {}, (Variable((256, 1024)),), over=0)
    shapes = {"copy0_0": (256, 1024)}
    executor = mx.sym.load_json(json.dumps(over.graph(1))).simple_bind(mx.cpu(1), grad_req="null", **shapes)
    assert "Total 1 MB allocated" in executor.debug_str()
