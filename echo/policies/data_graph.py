"""Training graphs of any framework from JSON files, each a list of nodes with costs and bytes; policies on them.

::

    {"unit_cost": "ms", "unit_bytes": "bytes", "loss": 1, "nodes": [
      {"id": 0, "op": "conv", "phase": "forward", "cost": 17.6, "bytes": 4096, "deps": []},
      {"id": 1, "op": "loss", "phase": "forward", "cost": 0.1, "bytes": 4, "deps": [0]},
      {"id": 2, "op": "conv_grad", "phase": "backward", "cost": 30.2, "bytes": 0, "deps": [0, 1]}]}

Nodes stand in execution order; ``deps`` are the ids of the nodes that they read, ``loss`` is the id of the last forward
node. Where ``phase`` is left out, nodes up to the loss are forward nodes. Nothing is computed in place. A node without
readers, also one of the forward pass, takes its bytes while it runs; parts of a graph that do not hang together run in
the order in which they stand, in one memory.

Three more fields, all optional. ``bytes`` may be a list, one number for each output of the node, and a dependency may
be a pair ``[id, output]``; an id alone is the first output. ``outputs``, next to ``nodes``, lists what lives to the end
of the step, as dependencies. A node with ``"recompute": false`` never runs again. A view has no node: its readers
depend on the node that it looks at.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Container, Mapping, NamedTuple, Sequence

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
from echo.policies.solvers.ruin_recreate import RuinRecreate
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
    sizes = [_sizes(node) for node in value["nodes"]]
    nodes = tuple(_node(node, number_of, number_of[loss], sizes) for node in value["nodes"])
    if all(node.forward for node in nodes):
        raise GraphError(f"loss {loss!r}: expected backward nodes after it, got none")
    seconds = tuple(_cost(node) * _UNITS[unit] for node in value["nodes"])
    return data_graph(nodes, _outputs(value.get("outputs", []), number_of, sizes), seconds)


def data_graph(nodes: Sequence[TrainingNode], outputs: Sequence[Entry], seconds: Sequence[float]) -> DataGraph:
    """The graph of these nodes, in execution order, with the bytes that it needs as it stands.

    ``outputs`` live to the end of the step. The memory of variables is not counted: it is there all the time.
    """
    forward = sum(nodes[entry.node].forward for entry in outputs)
    training = TrainingGraph(tuple(nodes), tuple(outputs), forward, 0)
    order = [number for number, _ in training.operators()]
    bytes_ = replay(training, order, seconds).bytes
    return DataGraph(TrainingGraph(training.nodes, training.outputs, forward, bytes_), tuple(seconds))


def _is_id(value: object) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _numbers(nodes: Sequence[Any]) -> dict[Any, int]:
    number_of: dict[Any, int] = {}
    for position, node in enumerate(nodes):
        if not isinstance(node, dict) or not _is_id(node.get("id")):
            raise GraphError(f"node at position {position}: expected an object with an id, a number or a text")
        if node["id"] in number_of:
            raise GraphError(f"node {node['id']!r}: the id stands at positions {number_of[node['id']]} and {position}")
        number_of[node["id"]] = position
    return number_of


def _node(
    value: Mapping[str, Any], number_of: Mapping[Any, int], loss: int, sizes: Sequence[Sequence[int]]
) -> TrainingNode:
    number, name = number_of[value["id"]], repr(value["id"])
    op, forward = value.get("op"), number <= loss
    if not isinstance(op, str) or not op or op == "null":
        raise GraphError(f"node {name}: op: expected the name of an operator, got {op!r}")
    _check_phase(value, forward)
    again = value.get("recompute", True)
    if not isinstance(again, bool):
        raise GraphError(f"node {name}: recompute: expected true or false, got {again!r}")
    return TrainingNode(
        op=op,
        name=f"{op}:{value['id']}",
        outputs=tuple(TensorType((size,), _UINT8) for size in sizes[number]),
        inputs=_inputs(value, number_of, sizes),
        forward=forward,
        original=number if forward else None,
        stateful=not again,
    )


def _sizes(value: Mapping[str, Any]) -> list[int]:
    """The bytes of each output of a node."""
    given = value.get("bytes")
    sizes: list[Any] = given if isinstance(given, list) and given else [given]
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**62:
            raise GraphError(f"node {value['id']!r}: bytes: expected a whole number, zero or more, got {size!r}")
    return sizes


def _check_phase(value: Mapping[str, Any], forward: bool) -> None:
    expected = _PHASES[not forward]
    phase = value.get("phase", expected)
    if phase not in _PHASES:
        raise GraphError(f"node {value['id']!r}: phase: expected one of {', '.join(_PHASES)}, got {phase!r}")
    if phase != expected:
        where = "up to the loss" if forward else "after the loss"
        raise GraphError(f"node {value['id']!r}: phase: expected {expected} {where}, got {phase}")


def _inputs(
    value: Mapping[str, Any], number_of: Mapping[Any, int], sizes: Sequence[Sequence[int]]
) -> tuple[Entry, ...]:
    deps, name = value.get("deps"), repr(value["id"])
    if not isinstance(deps, list):
        raise GraphError(f"node {name}: deps: expected a list of ids, got {deps!r}")
    entries = tuple(_entry(dep, f"node {name}: deps", number_of, sizes) for dep in deps)
    for dep, entry in zip(deps, entries):
        if entry.node >= number_of[value["id"]]:
            raise GraphError(
                f"node {name}: reads node {dep!r}, expected one before it "
                "(the graph has a cycle or is not in execution order)"
            )
    return entries


def _entry(dep: Any, where: str, number_of: Mapping[Any, int], sizes: Sequence[Sequence[int]]) -> Entry:
    """The output that an id, or a pair of an id and the number of an output, names."""
    node, output = dep if isinstance(dep, list) and len(dep) == 2 else (dep, 0)
    if not _is_id(node) or node not in number_of:
        raise GraphError(f"{where}: there is no node {dep!r}")
    number = number_of[node]
    if not isinstance(output, int) or isinstance(output, bool) or not 0 <= output < len(sizes[number]):
        raise GraphError(f"{where}: node {node!r} has {len(sizes[number])} outputs, got number {output!r}")
    return Entry(number, output)


def _outputs(value: Any, number_of: Mapping[Any, int], sizes: Sequence[Sequence[int]]) -> tuple[Entry, ...]:
    if not isinstance(value, list):
        raise GraphError(f"outputs: expected a list of ids, got {value!r}")
    return tuple(dict.fromkeys(_entry(dep, "outputs", number_of, sizes) for dep in value))


def _cost(value: Mapping[str, Any]) -> float:
    cost = value.get("cost")
    if not isinstance(cost, (int, float)) or isinstance(cost, bool) or not 0 <= cost < math.inf:
        raise GraphError(f"node {value['id']!r}: cost: expected a number, zero or more, got {cost!r}")
    return float(cost)


_SIMULATIONS = 500_000  # of the whole graph, that a search may take: a few seconds for some hundred nodes
_SHARE_OF_START = 0.25  # of those, to improve a schedule that was found elsewhere


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
    banned: Container[int] = (),
    once: bool = False,
    simulations: int = _SIMULATIONS,
    deadline: Deadline = NEVER,
) -> Problem:
    """The problem of a data graph: all forward nodes that may run again are candidates, except those ``banned``.

    Where nothing lives to the end of the step, the last forward node is the loss, and no candidate. ``seconds[i]`` is
    the time of node i, ``max_bytes`` bounds the bytes that are alive at once, ``max_seconds`` the recomputation in a
    step. Without ``heavy``, only light operators are candidates.

    Raises:
        OptionError: a limit makes no sense.
    """
    _check_limits(max_bytes=max_bytes, max_seconds=max_seconds)
    offered = _candidates(training, heavy, banned)
    return Problem(
        training=training,
        costs=CostModel(tuple(seconds), sum(seconds), len(training.nodes), 0),
        evaluator=LiveEvaluator(training, seconds),
        candidates=offered,
        segments=partition(training, offered),
        must_recompute=frozenset(),
        match_ranges=(1,),  # live bytes do not depend on it
        max_seconds=max_seconds,
        max_bytes=max_bytes,
        effort=simulations * len(training.nodes),
        once=once,
        deadline=deadline,
    )


def _check_limits(**limits: float | None) -> None:
    for name, limit in limits.items():
        if limit is not None and not limit >= 0:
            raise OptionError(f"{name}: expected zero or more, got {limit!r}")


def _candidates(training: TrainingGraph, heavy: bool, banned: Container[int]) -> dict[int, tuple[Entry, ...]]:
    """The nodes that may run again, with all their outputs."""
    forward = [(number, node) for number, node in training.operators() if node.forward]
    return {
        number: tuple(Entry(number, index) for index in range(len(node.outputs)))
        for number, node in (forward if training.outputs else forward[:-1])
        if number not in banned
        and not (node.random or node.stateful or node.mutates)
        and (heavy or not is_heavy_in_torch(node.op))
    }


def _attempts(
    policy: Policy, light: Problem, heavy: Problem, starts: Sequence[RecomputeSchedule]
) -> list[tuple[Problem, Policy]]:
    """The searches for a schedule: from each start, by light operators alone, and by all.

    Light operators alone cost up to 3 points of overhead more than the published plans of tests/data/ilp.
    """
    improved: list[tuple[Problem, Policy]] = [(heavy, RuinRecreate((start,), _SHARE_OF_START)) for start in starts]
    return [*improved, (light, policy), (heavy, policy)]


def solve_graph(
    policy: Policy,
    training: TrainingGraph,
    seconds: Sequence[float],
    *,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    banned: Container[int] = (),
    starts: Sequence[RecomputeSchedule] = (),
    simulations: int = _SIMULATIONS,
    deadline: Deadline = NEVER,
) -> Solved:
    """The schedule of a policy for a data graph: of light operators alone, or with heavy ones where that is better.

    With a budget it is the fastest that needs at most ``max_bytes``, else the one with the fewest bytes that is found.
    Of ``starts``, schedules that others found, each is improved too. At the ``deadline`` the best so far is taken.
    """

    def problem(heavy: bool, deadline: Deadline) -> Problem:
        return problem_of_graph(training, seconds, max_bytes=max_bytes, max_seconds=max_seconds, heavy=heavy,
                                banned=banned, simulations=simulations, deadline=deadline)  # fmt: skip

    def solve(problem: Problem, policy: Policy = policy) -> Solved:
        schedule, _ = run_with_deadline(policy, problem)
        return Solved(schedule, problem.value(schedule), problem.candidates.keys() != light.candidates.keys())

    light, heavy = problem(False, deadline), problem(True, deadline)
    if max_bytes is None and max_seconds is None:
        return solve(light)
    attempts = _attempts(policy, light, heavy, starts)
    found = []
    for index, (attempt, by) in enumerate(attempts):
        part = deadline.part(len(attempts) - index + 1) if starts else deadline
        found.append(solve(replace(attempt, deadline=part), by))
    # at a deadline, a search may end before it has looked at its start
    found += [Solved(one, heavy.value(one), heavy.candidates.keys() != light.candidates.keys()) for one in starts]
    best = min(found, key=lambda solved: heavy.rank(solved.value))
    if max_bytes is not None and best.planned_bytes > max_bytes:
        best = min(best, least((light, heavy), solve, heavy, found), key=lambda solved: solved.planned_bytes)
    return best
