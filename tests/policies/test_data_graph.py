"""Training graphs from files: the accounting of the published schedules, and errors that name the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest

from echo.errors import GraphError, OptionError
from echo.ir.schedule import replay
from echo.policies import RecomputeAll, RecomputeNone
from echo.policies.data_graph import dag_of, load_dag, problem_of_graph, solve_graph
from echo.policies.search import Search
from tests.support.data_graphs import ILP, ILP_NAMES, chain, ilp_graph, ilp_plans, unrolled


def small() -> dict[str, Any]:
    return {
        "unit_cost": "ms",
        "unit_bytes": "bytes",
        "loss": "loss",
        "nodes": [
            {"id": "a", "op": "conv", "phase": "forward", "cost": 2.5, "bytes": 8, "deps": []},
            {"id": "b", "op": "relu", "phase": "forward", "cost": 1, "bytes": 4, "deps": ["a"]},
            {"id": "loss", "op": "loss", "phase": "forward", "cost": 0, "bytes": 1, "deps": ["b"]},
            {"id": "gb", "op": "relu_grad", "phase": "backward", "cost": 1, "bytes": 4, "deps": ["b", "loss"]},
            {"id": "ga", "op": "conv_grad", "phase": "backward", "cost": 5, "bytes": 0, "deps": ["a", "gb"]},
        ],
    }


@pytest.mark.parametrize("name", ILP_NAMES)
def test_the_published_accounting(name: str) -> None:
    training, seconds = ilp_graph(name)
    stash_all = json.loads((ILP / f"{name}.json").read_text())["stash_all"]
    assert replay(training, range(len(training.nodes)), seconds).bytes == stash_all["peak_bytes"]
    assert training.planned_bytes == stash_all["peak_bytes"]
    assert sum(seconds) == pytest.approx(stash_all["cost"] / 1000)


def test_a_small_graph() -> None:
    training, seconds = dag_of(small())
    assert [node.name for node in training.nodes] == ["conv:a", "relu:b", "loss:loss", "relu_grad:gb", "conv_grad:ga"]
    assert [node.forward for node in training.nodes] == [True, True, True, False, False]
    assert [node.outputs[0].bytes for node in training.nodes] == [8, 4, 1, 4, 0]
    assert [[entry.node for entry in node.inputs] for node in training.nodes] == [[], [0], [1], [1, 2], [0, 3]]
    assert seconds == pytest.approx((0.0025, 0.001, 0.0, 0.001, 0.005))
    assert training.planned_bytes == 8 + 4 + 1 + 4
    without = {**small(), "unit_cost": "s", "nodes": [{**node, "cost": 1} for node in small()["nodes"]]}
    for node in without["nodes"]:
        del node["phase"]
    assert dag_of(without).training.nodes == training.nodes
    assert dag_of(without).seconds == (1.0,) * 5


def test_unread_nodes_run_where_they_stand() -> None:
    """A part of its own and a node without readers take their bytes while they are needed, and no longer."""
    value = small()
    value["nodes"][1:1] = [
        {"id": "x", "op": "relu", "cost": 1, "bytes": 100, "deps": []},
        {"id": "y", "op": "relu", "cost": 1, "bytes": 10, "deps": ["x"]},
    ]
    training, _ = dag_of(value)
    assert training.planned_bytes == 8 + 100 + 10


def broken(change: Callable[[Any], Any]) -> Any:
    value = small()
    changed = change(value)
    return value if changed is None else changed


def set_in(number: int, **fields: Any) -> Callable[[Any], None]:
    return lambda value: value["nodes"][number].update(fields)


def drop(number: int, field: str) -> Callable[[Any], None]:
    return lambda value: value["nodes"][number].__delitem__(field)


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list": (lambda value: [], "expected an object with a list of nodes"),
    "no nodes": (lambda value: value.update(nodes=[]), "expected an object with a list of nodes"),
    "a node that is none": (lambda value: value["nodes"].append(7), "node at position 5: expected an object"),
    "no id": (drop(1, "id"), "node at position 1: expected an object with an id"),
    "twice an id": (set_in(1, id="a"), "node 'a': the id stands at positions 0 and 1"),
    "a cycle": (set_in(0, deps=["b"]), r"node 'a': reads node 'b', expected one before it \(the graph has a cycle"),
    "itself": (set_in(0, deps=["a"]), "node 'a': reads node 'a', expected one before it"),
    "not in order": (lambda value: value["nodes"].insert(0, value["nodes"].pop(1)), "node 'b': reads node 'a'"),
    "unknown id": (set_in(1, deps=["q"]), "node 'b': deps: there is no node 'q'"),
    "an id of another kind": (set_in(1, deps=[["a"]]), r"node 'b': deps: there is no node \['a'\]"),
    "no deps": (drop(1, "deps"), "node 'b': deps: expected a list of ids, got None"),
    "no cost": (drop(1, "cost"), "node 'b': cost: expected a number, zero or more, got None"),
    "a negative cost": (set_in(1, cost=-1), "node 'b': cost: expected a number, zero or more, got -1"),
    "no number": (set_in(1, cost=float("nan")), "node 'b': cost: expected a number, zero or more, got nan"),
    "no bytes": (drop(1, "bytes"), "node 'b': bytes: expected a whole number, zero or more, got None"),
    "negative bytes": (set_in(1, bytes=-4), "node 'b': bytes: expected a whole number, zero or more, got -4"),
    "parts of bytes": (set_in(1, bytes=1.5), "node 'b': bytes: expected a whole number, zero or more, got 1.5"),
    "no op": (drop(1, "op"), "node 'b': op: expected the name of an operator, got None"),
    "no loss": (lambda value: value.__delitem__("loss"), "loss: expected the id of the last forward node, got None"),
    "unknown loss": (lambda value: value.update(loss="q"), "loss: expected the id of the last forward node, got 'q'"),
    "nothing after the loss": (lambda value: {**value, "nodes": value["nodes"][:3]},
                                "loss 'loss': expected backward nodes after it, got none"),
    "forward after the loss": (set_in(3, phase="forward"), "node 'gb': phase: expected backward after the loss"),
    "backward before the loss": (set_in(1, phase="backward"), "node 'b': phase: expected forward up to the loss"),
    "no phase": (set_in(1, phase="sideways"), "node 'b': phase: expected one of forward, backward, got 'sideways'"),
    "another unit": (lambda value: value.update(unit_cost="hours"), "unit_cost: expected one of s, ms, us"),
    "another unit of bytes": (lambda value: value.update(unit_bytes="GB"), "unit_bytes: expected bytes, got 'GB'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_errors_name_the_node(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(GraphError, match=message):
        dag_of(broken(change))


def test_files_that_are_no_graphs(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    for content in (b'{"nodes": [', b"\xff\xfe", b""):
        path.write_bytes(content)
        with pytest.raises(GraphError, match=r"graph\.json is not JSON"):
            load_dag(path)
    path.write_text('{"nodes": 3}')
    with pytest.raises(GraphError, match=r"graph\.json is not a training graph: expected an object"):
        load_dag(path)
    with pytest.raises(FileNotFoundError):
        load_dag(tmp_path / "missing.json")


def test_all_but_the_loss_are_candidates() -> None:
    training, seconds = unrolled(3)
    everything, light = (problem_of_graph(training, seconds, heavy=heavy) for heavy in (True, False))
    forward = [number for number, node in training.operators() if node.forward]
    assert sorted(everything.candidates) == forward[:-1]
    assert training.nodes[forward[-1]].op == "loss"
    offered = {training.nodes[number].op for number in set(everything.candidates) - set(light.candidates)}
    assert offered == {"linear"}


@pytest.mark.parametrize("limit", ["max_bytes", "max_seconds"])
def test_limits_that_make_no_sense(limit: str) -> None:
    with pytest.raises(OptionError, match=f"{limit}: expected zero or more, got -1"):
        problem_of_graph(*chain(3), **{limit: -1})


@pytest.mark.slow
def test_heavy_operators_run_again_where_that_pays() -> None:
    """UNet: without its cheap convolution the second budget costs more, the first does not."""
    plans = ilp_plans("unet_b11")
    first, second = (solve_graph(Search(), *ilp_graph("unet_b11"), max_bytes=plan["peak_bytes"]) for plan in plans[:2])
    assert (first.heavy, second.heavy) == (False, True)
    light = problem_of_graph(*ilp_graph("unet_b11"), max_bytes=plans[1]["peak_bytes"], heavy=False)
    assert light.value(Search().choose(light)).seconds > second.value.seconds
    assert not solve_graph(RecomputeAll(), *ilp_graph("unet_b11")).heavy


def test_the_least_that_is_reached() -> None:
    assert solve_graph(RecomputeNone(), *chain(20), max_bytes=0).value.bytes == 22
    assert solve_graph(RecomputeAll(), *chain(20), max_bytes=0).value.bytes == 22
    assert solve_graph(Search(), *chain(20), max_bytes=0).value.bytes <= 8


def several_outputs() -> dict[str, Any]:
    """A node of two outputs, of which the second lives to the end, and one that must not run again."""
    return {
        "loss": "loss",
        "outputs": ["loss", ["a", 1]],
        "nodes": [
            {"id": "a", "op": "norm", "cost": 1, "bytes": [8, 2], "deps": []},
            {"id": "b", "op": "bernoulli", "cost": 1, "bytes": 4, "deps": ["a"], "recompute": False},
            {"id": "loss", "op": "loss", "cost": 0, "bytes": 1, "deps": ["b", ["a", 1]]},
            {"id": "ga", "op": "grad", "cost": 1, "bytes": 16, "deps": [["a", 0], "b", "loss"]},
        ],
    }


def test_outputs_live_to_the_end_and_are_separate_values() -> None:
    training, _ = dag_of(several_outputs())
    assert [tuple(entry)[:2] for entry in training.outputs] == [(2, 0), (0, 1)]
    assert [tensor.bytes for tensor in training.nodes[0].outputs] == [8, 2]
    assert training.planned_bytes == 8 + 2 + 4 + 1 + 16
    without = {**several_outputs(), "outputs": []}
    assert dag_of(without).training.planned_bytes == 8 + 4 + 1 + 16, "the second output ends with the loss"


def test_node_that_must_not_run_again_is_no_candidate() -> None:
    problem = problem_of_graph(*dag_of(several_outputs()))
    assert {number: len(entries) for number, entries in problem.candidates.items()} == {0: 2, 2: 1}
    assert sorted(problem_of_graph(*dag_of(several_outputs()), banned={0}).candidates) == [2]


def test_several_outputs_are_evaluated_as_they_are_replayed() -> None:
    problem = problem_of_graph(*dag_of(several_outputs()))
    value = problem.value(problem.splits([0]))
    assert (value.bytes, value.seconds) == (2 + 4 + 1 + 16 + 8, 1e-3), "the copy's second output is freed at once"
    assert problem.evaluator.executed(problem.choice([0])).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(("change", "message"), [
    ({"bytes": [4, -1]}, "bytes: expected a whole number, zero or more, got -1"),
    ({"bytes": []}, r"bytes: expected a whole number, zero or more, got \[\]"),
    ({"deps": [["a", 2]]}, "deps: node 'a' has 2 outputs, got number 2"),
    ({"recompute": "no"}, "recompute: expected true or false, got 'no'"),
])  # fmt: skip
def test_fields_of_several_outputs_are_checked(change: dict[str, Any], message: str) -> None:
    value = several_outputs()
    value["nodes"][1].update(change)
    with pytest.raises(GraphError, match=message):
        dag_of(value)
    for outputs in (7, ["q"], [["a", 5]]):
        with pytest.raises(GraphError, match="outputs: "):
            dag_of({**several_outputs(), "outputs": outputs})


def test_starts_are_improved_and_never_lost() -> None:
    """With no effort of its own, a search for a budget returns at worst the schedule that it was given."""
    training, seconds = chain(40)
    problem = problem_of_graph(training, seconds)
    start = problem.splits(range(1, 40))
    budget = problem.value(start).bytes
    solved = solve_graph(RecomputeNone(), training, seconds, max_bytes=budget, starts=[start], simulations=1)
    assert solved.planned_bytes <= budget
    assert solved.seconds <= problem.value(start).seconds


def test_node_of_a_small_graph_runs_more_than_once_where_a_budget_needs_it() -> None:
    """Every choice of what runs once more is tried for a chain of ten, and none of them keeps five bytes."""
    solved = solve_graph(Search(), *chain(10), max_bytes=5)
    assert solved.planned_bytes <= 5
    assert max(map(len, solved.schedule.values())) > 1
