"""What a plan keeps of a joint graph when torch's is gone: plain values, as JSON too, and a fingerprint of the graph.

`PlannedGraph` has everything that texts and pages show. It refers to no fx node: these hold the tensors of a trace.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

import torch
from torch import fx

from echo.errors import GraphError
from echo.ir.graph import VARIABLE, Entry
from echo.ir.schedule import RecomputeSchedule, Replayed, replay, steps_of
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.policies.data_graph import data_graph
from echo.system.files import digest_of, shortened
from echo.torch import safety, snapshots
from echo.torch.capture import BYTES, JointGraph, is_tangent
from echo.torch.storages import hint

_FRAME = re.compile(r'File "([^"]*)", line (\d+)[^\n]*\n\s*([^\n]*)')
_MODULE = re.compile(r"^L(?:\['\w+'\]|__\w+?__)\.?|(?:_modules)?\['?|'?\]")
_MOST_CODE = 80  # characters of a user's line
_TEXTS = (int, float, complex, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class PlannedGraph:
    """A training graph with what is known of its nodes, by their numbers.

    ``seconds`` has the time of each node, ``reasons`` why some forward nodes never run again, ``insisted`` those that
    the user wants to run again. ``stock`` is the schedule without echo: what torch's own partitioner for Inductor runs
    again. ``sources`` are lines of the user's program, and ``modules`` its modules, where torch noted them.
    ``fingerprint`` is equal for graphs of the same structure and sizes (`fingerprint`).
    """

    training: TrainingGraph
    seconds: tuple[float, ...]
    reasons: Mapping[int, str]
    insisted: frozenset[int]
    stock: RecomputeSchedule
    sources: Mapping[int, str]
    modules: Mapping[int, str]
    fingerprint: str

    def replayed(self, schedule: RecomputeSchedule) -> Replayed:
        """The peak of a schedule and its seconds of recomputation, by a replay that trusts no planner."""
        steps = steps_of(self.training, schedule)
        bytes_ = replay(self.training, [step.node for step in steps], self.seconds).bytes
        return Replayed(bytes_, sum(self.seconds[step.node] for step in steps if step.node != step.position))

    @cached_property
    def without_echo(self) -> Replayed:
        """The peak and the seconds of recomputation of a step without echo."""
        return self.replayed(self.stock)

    @property
    def step_seconds(self) -> float:
        """The seconds of a step without echo."""
        return sum(self.seconds) + self.without_echo.seconds

    def overhead(self, recompute_seconds: float) -> float:
        """The time that recomputation adds to a step without echo, as a part of it."""
        return (recompute_seconds - self.without_echo.seconds) / max(self.step_seconds, 1e-12)

    def origin(self, number: int, code: bool = True) -> str:
        """Where a node comes from, as "model.py:31: x = self.up(x) (blocks.0.up)"; empty where torch noted nothing.

        Without ``code``, it is the place alone.
        """
        source, module = self.sources.get(number, ""), self.modules.get(number, "")
        place = source if code else source.partition(": ")[0]
        return f"{place} ({module})" if place and module else place or module

    def to_json(self) -> dict[str, Any]:
        """The graph as a JSON value."""
        rows = [
            [node.op, node.name, node.forward, node.stateful, [tensor.bytes for tensor in node.outputs],
             [list(entry[:2]) for entry in node.inputs], self.seconds[number], self.reasons.get(number, ""),
             self.sources.get(number, ""), self.modules.get(number, ""), sorted(node.in_kernel.items())]
            for number, node in enumerate(self.training.nodes)
        ]  # fmt: skip
        outputs = [list(entry[:2]) for entry in self.training.outputs]
        stock = [[number, list(positions)] for number, positions in sorted(self.stock.items())]
        return {"fingerprint": self.fingerprint, "nodes": rows, "outputs": outputs,
                "insisted": sorted(self.insisted), "stock": stock}  # fmt: skip

    @staticmethod
    def from_json(value: Any) -> PlannedGraph:
        """Reads what `to_json` wrote.

        Raises:
            GraphError: a node reads what does not come before it.
            KeyError, TypeError, ValueError: something else is no such graph.
        """
        rows = value["nodes"]
        nodes = [_node(number, row) for number, row in enumerate(rows)]
        outputs = [Entry(_whole(node), _whole(index)) for node, index in value["outputs"]]
        seconds = [_seconds(row[6]) for row in rows]
        reasons, sources, modules = (
            {number: _text(row[at]) for number, row in enumerate(rows) if row[at]} for at in (7, 8, 9)
        )
        graph, insisted = data_graph(nodes, outputs, seconds), frozenset(map(_whole, value["insisted"]))
        stock = read_schedule(graph.training, value["stock"])
        return PlannedGraph(
            graph.training, graph.seconds, reasons, insisted, stock, sources, modules, _text(value["fingerprint"])
        )


def planned_graph(
    joint: JointGraph,
    seconds: Sequence[float],
    kept: Mapping[int, str] | None = None,
    insisted: Iterable[int] = (),
    stock: RecomputeSchedule | None = None,
) -> PlannedGraph:
    """What plans keep of a joint graph; ``kept`` has reasons of the user's why nodes do not run again."""
    reasons = dict(kept or {})
    reasons.update({joint.number_of[node]: reason for node, reason in joint.reasons.items() if node in joint.number_of})
    reasons.update(
        {number: f"{safety.operator_name(node)} draws random numbers" for node, number in joint.masks.items()}
    )
    reasons.update(dict.fromkeys(joint.snapshots.values(), snapshots.REASON))
    sources = {number: source for number, node in enumerate(joint.order) if (source := source_of(node))}
    modules = {number: module for number, node in enumerate(joint.order) if (module := module_of(node))}
    return PlannedGraph(
        joint.training, tuple(seconds), reasons, frozenset(insisted), stock or {}, sources, modules, fingerprint(joint)
    )


def source_of(node: fx.Node) -> str:
    """The user's line that a node comes from, as "model.py:31: x = self.up(x)"; empty where torch noted none."""
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
    folder = str(Path(torch.__file__).parent)
    own = [frame for frame in frames if not frame[0].startswith(folder)] or frames
    if not own:
        return ""
    path, line, code = own[-1]
    return f"{Path(path).name}:{line}: {shortened(code.strip(), _MOST_CODE)}"


def module_of(node: fx.Node) -> str:
    """The module that a node comes from, as "blocks.0.up"; empty for the outermost one, or where torch noted none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return _MODULE.sub("", str([*stack.values()][-1][0])) if stack else ""


# The fingerprint: equal for graphs for which the same schedule is a plan.


def fingerprint(joint: JointGraph) -> str:
    """A text of 32 characters that is equal for joint graphs of the same structure, in any process.

    Operators, constants, shapes, strides and types count, and the kind of the device without its number. Names do not.
    A size that torch traces as a symbol counts as that of the first batch.
    """
    places = {node: place for place, node in enumerate(dict.fromkeys([*joint.order, *joint.forward, *joint.backward]))}
    rows = [
        [node.op, _target(node), [_argument(one, places) for one in (node.args, node.kwargs)],
         [_described(value) for value in safety.values_of(node)]]
        for node in places
    ]  # fmt: skip
    # sizes follow from values; scratch memory is that of a machine
    nodes = [[[[*entry[:2]] for entry in node.inputs], node.forward, node.stateful] for node in joint.training.nodes]
    ends = [_argument(one, places) for one in (joint.outputs, joint.gradients)]
    return digest_of("echo torch graph 1", json.dumps([rows, nodes, ends]).encode())[:32]


def _target(node: fx.Node) -> str:
    if node.op != "call_function":
        return "tangent" if is_tangent(node) else ""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return f"{getattr(node.target, '__module__', '')}.{safety.operator_name(node)}"


def _argument(value: Any, places: Mapping[fx.Node, int]) -> Any:
    """An argument as JSON: nodes by number, devices by kind, objects without a text of their own by type."""
    if isinstance(value, fx.Node):
        return [places.get(value, -1)]
    if isinstance(value, (tuple, list)):
        return ["list", *(_argument(item, places) for item in value)]
    if isinstance(value, dict):
        return ["dict", *([str(key), _argument(value[key], places)] for key in sorted(value, key=str))]
    if isinstance(value, slice):
        return ["slice", *(_argument(item, places) for item in (value.start, value.stop, value.step))]
    if isinstance(value, torch.device):
        return value.type
    return repr(value) if isinstance(value, _TEXTS) else type(value).__name__


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        shape, strides = tuple(map(hint, value.shape)), tuple(map(hint, value.stride()))
        return f"{value.dtype} {shape} {strides} {value.device.type}"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__} {value.node.hint}"
    return type(value).__name__


def check_schedule(training: TrainingGraph, schedule: Mapping[int, Any]) -> None:
    """Checks that forward nodes which may run again do so at ascending backward positions.

    Raises:
        GraphError: one does not; the message names it.
    """
    for number, positions in schedule.items():
        if not 0 <= number < len(training.nodes):
            raise GraphError(f"schedule: there is no node {number}")
        node = training.nodes[number]
        if node.is_variable or not node.forward or node.stateful:
            raise GraphError(f"schedule: {node.name!r} must not run again")
        backward = [at for at in positions if 0 <= at < len(training.nodes) and not training.nodes[at].forward]
        if not backward or backward != sorted(set(positions)) or backward != list(positions):
            raise GraphError(f"schedule: {node.name!r}: expected ascending positions of backward nodes")


# JSON values, each checked before anything uses it.


def read_schedule(training: TrainingGraph, value: Any) -> RecomputeSchedule:
    """The schedule of a JSON value: pairs of a node and its positions.

    Raises:
        GraphError: it is none of this graph.
    """
    schedule = {number: tuple(positions) for number, positions in value}
    if not all(type(one) is int for number, positions in schedule.items() for one in (number, *positions)):
        raise GraphError("schedule: expected whole numbers")
    check_schedule(training, schedule)
    return schedule


def _node(number: int, row: Any) -> TrainingNode:
    op, name, forward, fixed, sizes, inputs, *_, in_kernel = row
    if not (isinstance(forward, bool) and isinstance(fixed, bool)):
        raise TypeError(f"node {number}: expected true or false, got {forward!r} and {fixed!r}")
    outputs = tuple(TensorType((_whole(size),), BYTES) for size in sizes)
    reads = tuple(Entry(_whole(node), _whole(index)) for node, index in inputs)
    if _text(op) == VARIABLE:
        return TrainingNode(VARIABLE, _text(name), outputs)
    original = number if forward else None
    return TrainingNode(
        op, _text(name), outputs, reads, forward=forward, original=original, stateful=fixed,
        in_kernel={_whole(position): _whole(kernel) for position, kernel in in_kernel},
    )  # fmt: skip


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise GraphError(f"expected a whole number, zero or more, got {shortened(repr(value))}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**62:
        raise GraphError(f"expected seconds, zero or more, got {shortened(repr(value))}")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise GraphError(f"expected a text, got {shortened(repr(value))}")
    return value
