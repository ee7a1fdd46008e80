"""Training graphs from JSON files: one training step as a list of nodes with costs and bytes, of any framework.

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

from echo.errors import GraphError
from echo.ir.graph import Entry
from echo.ir.schedule import replay
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.system.files import read_json

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
        user=number if forward else None,
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
