"""Training graphs of any framework from JSON files, each a list of nodes with costs and bytes; policies on them.

::

    {"unit_cost": "ms", "unit_bytes": "bytes", "loss": 1, "nodes": [
      {"id": 0, "op": "conv", "phase": "forward", "cost": 17.6, "bytes": 4096, "deps": []},
      {"id": 1, "op": "loss", "phase": "forward", "cost": 0.1, "bytes": 4, "deps": [0]},
      {"id": 2, "op": "conv_grad", "phase": "backward", "cost": 30.2, "bytes": 0, "deps": [0, 1]}]}

Nodes stand in execution order and have one output each; ``deps`` are the ids of the nodes that they read, ``loss`` is
the id of the last forward node. Where ``phase`` is left out, nodes up to the loss are forward nodes. No output lives to
the end of the step, and nothing is computed in place. A node without readers, also one of the forward pass, takes
its bytes while it runs; parts of a graph that do not hang together run in the order in which they stand, in one memory.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from echo.errors import GraphError, OptionError
from echo.estimators.cost_model import CostModel
from echo.estimators.scheduler import LiveEvaluator
from echo.estimators.storage_planner import Evaluation
from echo.ir.graph import Entry
from echo.ir.ops import is_heavy_in_torch
from echo.ir.schedule import RecomputeSchedule, replay
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.policies.least import least
from echo.policies.problem import Policy, Problem, partition, run_with_deadline
from echo.system.files import read_json
from echo.system.process import NEVER, Deadline

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_PHASES = ("forward", "backward")
_UINT8 = 3  # MXNet's type flag: one byte an element


class DataGraph(NamedTuple):
    """A training graph and the seconds of each of its nodes; the last forward node is the loss."""

    training: TrainingGraph
    seconds: tuple[float, ...]


def load_dag(path: Path) -> DataGraph:
    """Reads a file.

    Raises:
        GraphError: the file is not such a graph; the message names the file and the node.
        OSError: it cannot be read.
    """
    try:
        return dag_of(read_json(path))
    except ValueError as error:  # malformed JSON or UTF-8
        raise GraphError(f"{path} is not JSON: {error}") from error
    except GraphError as error:
        raise GraphError(f"{path} is not a training graph: {error}") from error


def dag_of(value: Any) -> DataGraph:
    """The graph in a JSON value.

    Raises:
        GraphError: it is not one; the message names the node.
    """
    if not isinstance(value, dict) or not isinstance(value.get("nodes"), list) or not value["nodes"]:
        raise GraphError("expected an object with a list of nodes")
    unit = value.get("unit_cost", "ms")
    if not isinstance(unit, str) or unit not in _UNITS:
        raise GraphError(f"unit_cost: expected one of {', '.join(_UNITS)}, got {unit!r}")
    if value.get("unit_bytes", "bytes") != "bytes":
        raise GraphError(f"unit_bytes: expected bytes, got {value['unit_bytes']!r}")
    number_of = _numbers(value["nodes"])
    loss = value.get("loss")
    if not _is_id(loss) or loss not in number_of:
        raise GraphError(f"loss: expected the id of the last forward node, got {loss!r}")
    nodes = tuple(_node(node, number_of, number_of[loss]) for node in value["nodes"])
    if all(node.forward for node in nodes):
        raise GraphError(f"loss {loss!r}: expected backward nodes after it, got none")
    training = TrainingGraph(nodes, (), 0, 0)
    seconds = tuple(_cost(node) * _UNITS[unit] for node in value["nodes"])
    bytes_ = replay(training, range(len(nodes)), seconds).bytes
    return DataGraph(TrainingGraph(nodes, (), 0, bytes_), seconds)


def _is_id(value: object) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _numbers(nodes: Sequence[Any]) -> dict[Any, int]:
    """The position of each id."""
    number_of: dict[Any, int] = {}
    for position, node in enumerate(nodes):
        if not isinstance(node, dict) or not _is_id(node.get("id")):
            raise GraphError(f"node at position {position}: expected an object with an id, a number or a text")
        if node["id"] in number_of:
            raise GraphError(f"node {node['id']!r}: the id stands at positions {number_of[node['id']]} and {position}")
        number_of[node["id"]] = position
    return number_of


def _node(value: Mapping[str, Any], number_of: Mapping[Any, int], loss: int) -> TrainingNode:
    number, name = number_of[value["id"]], repr(value["id"])
    op, size, forward = value.get("op"), value.get("bytes"), number <= loss
    if not isinstance(op, str) or not op or op == "null":
        raise GraphError(f"node {name}: op: expected the name of an operator, got {op!r}")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**62:
        raise GraphError(f"node {name}: bytes: expected a whole number, zero or more, got {size!r}")
    _check_phase(value, forward)
    return TrainingNode(
        op=op,
        name=f"{op}:{value['id']}",
        outputs=(TensorType((size,), _UINT8),),
        inputs=_inputs(value, number_of),
        forward=forward,
        original=number if forward else None,
    )


def _check_phase(value: Mapping[str, Any], forward: bool) -> None:
    expected = _PHASES[not forward]
    phase = value.get("phase", expected)
    if phase not in _PHASES:
        raise GraphError(f"node {value['id']!r}: phase: expected one of {', '.join(_PHASES)}, got {phase!r}")
    if phase != expected:
        where = "up to the loss" if forward else "after the loss"
        raise GraphError(f"node {value['id']!r}: phase: expected {expected} {where}, got {phase}")


def _inputs(value: Mapping[str, Any], number_of: Mapping[Any, int]) -> tuple[Entry, ...]:
    deps, name = value.get("deps"), repr(value["id"])
    if not isinstance(deps, list):
        raise GraphError(f"node {name}: deps: expected a list of ids, got {deps!r}")
    for dep in deps:
        if not _is_id(dep) or dep not in number_of:
            raise GraphError(f"node {name}: deps: there is no node {dep!r}")
        if number_of[dep] >= number_of[value["id"]]:
            raise GraphError(
                f"node {name}: reads node {dep!r}, expected one before it "
                "(the graph has a cycle or is not in execution order)"
            )
    return tuple(Entry(number_of[dep]) for dep in deps)


def _cost(value: Mapping[str, Any]) -> float:
    cost = value.get("cost")
    if not isinstance(cost, (int, float)) or isinstance(cost, bool) or not 0 <= cost < math.inf:
        raise GraphError(f"node {value['id']!r}: cost: expected a number, zero or more, got {cost!r}")
    return float(cost)


# Policies on data graphs.

_SIMULATIONS = 500_000  # of the whole graph, that a search may take: a few seconds for some hundred nodes


class Solved(NamedTuple):
    """A schedule, its exact value, and whether heavy operators were offered."""

    schedule: RecomputeSchedule
    value: Evaluation
    heavy: bool

    @property
    def planned_bytes(self) -> int:
        """The bytes that are alive at once at most."""
        return self.value.bytes

    @property
    def seconds(self) -> float:
        """The recomputation in a step."""
        return self.value.seconds


def problem_of_graph(
    training: TrainingGraph,
    seconds: Sequence[float],
    *,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    heavy: bool = True,
    once: bool = False,
    simulations: int = _SIMULATIONS,
    deadline: Deadline = NEVER,
) -> Problem:
    """The problem of a data graph: all forward nodes but the last, the loss, are candidates.

    ``seconds[i]`` is the time of node i, ``max_bytes`` bounds the bytes that are alive at once, ``max_seconds`` the
    recomputation in a step. Without ``heavy``, only light operators are candidates.

    Raises:
        OptionError: a limit makes no sense.
    """
    for name, limit in (("max_bytes", max_bytes), ("max_seconds", max_seconds)):
        if limit is not None and not limit >= 0:
            raise OptionError(f"{name}: expected zero or more, got {limit!r}")
    forward = [number for number, node in training.operators() if node.forward]
    candidates = {n: (Entry(n),) for n in forward[:-1] if heavy or not is_heavy_in_torch(training.nodes[n].op)}
    return Problem(
        training=training,
        costs=CostModel(tuple(seconds), sum(seconds), len(training.nodes), 0),
        evaluator=LiveEvaluator(training, seconds),
        candidates=candidates,
        segments=partition(training, candidates),
        must_recompute=frozenset(),
        match_ranges=(1,),  # live bytes do not depend on it
        max_seconds=max_seconds,
        max_bytes=max_bytes,
        effort=simulations * len(training.nodes),
        once=once,
        deadline=deadline,
    )


def solve_graph(
    policy: Policy,
    training: TrainingGraph,
    seconds: Sequence[float],
    *,
    max_bytes: int | None = None,
    deadline: Deadline = NEVER,
) -> Solved:
    """The schedule of a policy for a data graph: of light operators alone, or with heavy ones where that is better.

    With a budget it is the fastest that needs at most ``max_bytes``, else the one with the fewest bytes that is found.
    At the ``deadline`` the best schedule so far is taken.
    """

    def solve(problem: Problem) -> Solved:
        schedule, _ = run_with_deadline(policy, problem)
        return Solved(schedule, problem.value(schedule), problem.candidates is not light.candidates)

    light = problem_of_graph(training, seconds, max_bytes=max_bytes, heavy=False, deadline=deadline)
    if max_bytes is None:
        return solve(light)
    heavy = problem_of_graph(training, seconds, max_bytes=max_bytes, deadline=deadline)
    # Light operators alone cost up to 3 points of overhead more than the published plans of tests/data/ilp.
    found = [solve(problem) for problem in (light, heavy)]
    best = min(found, key=lambda solved: heavy.rank(solved.value))
    if best.planned_bytes > max_bytes:
        best = min(best, least((light, heavy), solve, heavy), key=lambda solved: solved.planned_bytes)
    return best
