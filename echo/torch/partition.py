"""From a joint graph and a schedule to forward and backward graphs.

The joint graph is written again in the order of the schedule: the forward pass, then the backward pass, in which each
recomputed node is copied just before the first node that reads the copy. Such a graph needs no choice any more of what
to save: torch's default partitioner saves what the second part reads of the first. Everything that it knows about
symbolic sizes, mutated inputs, effects and collectives stays as it is.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from typing import Any, Sequence

import torch
from torch import fx
from torch.fx.node import map_arg

from echo.errors import GraphError
from echo.ir.schedule import RecomputeSchedule, steps_of
from echo.torch import compat, safety, snapshots
from echo.torch.capture import JointGraph, mask_of

_AS_TRACED = -1  # a position before every split: what the forward pass computed
COPY_SUFFIX = "_again"  # of the names of nodes that run again


def partitioned(
    module: fx.GraphModule, joint: JointGraph, schedule: RecomputeSchedule, inputs: Sequence[Any], **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and backward graphs of a schedule; ``module`` stays as it is.

    ``options`` are those that torch calls a partitioner with, ``num_fwd_outputs`` among them.
    """
    graph = _Writer(module, joint, schedule).written()
    forward, backward = compat.division(compat.graph_module(module, graph), inputs, **options)
    _remove_forward_nodes(backward, joint)
    return forward, backward


def _remove_forward_nodes(backward: fx.GraphModule, joint: JointGraph) -> None:
    """Removes what the backward pass has no reader for.

    torch leaves operators there that it takes for impure: a dropout whose mask is saved would draw once more, and the
    program would go on with other random numbers than in eager mode.

    Raises:
        GraphError: an operator is left that must not run again.
    """
    fixed = {node.name for node in joint.reasons} | {node.name for node in joint.masks}
    for node in reversed(list(backward.graph.nodes)):
        if node.op == "call_function" and not node.users and node.meta.get("partitioner_tag") == "is_forward":
            backward.graph.erase_node(node)
    left = [node.name for node in backward.graph.nodes if node.op == "call_function" and node.name in fixed]
    if left:
        raise GraphError(f"{left[0]} would run again in the backward pass")
    backward.recompile()


class _Writer:
    def __init__(self, module: fx.GraphModule, joint: JointGraph, schedule: RecomputeSchedule) -> None:
        self._module, self._joint, self._schedule = module, joint, schedule
        self._graph = fx.Graph()
        self._made: dict[tuple[fx.Node, int], fx.Node] = {}  # by node and copy; 0 is the forward pass's
        self._views: dict[tuple[fx.Node, tuple[fx.Node, ...]], fx.Node] = {}
        self._forward = set(joint.forward)
        self._snapshots: dict[fx.Node, fx.Node] = {}

    def written(self) -> fx.Graph:
        """The joint graph with copies, in the order of the schedule."""
        for node in self._module.graph.nodes:
            if node.op in ("placeholder", "get_attr") and not self._is_region(node):
                self._add(node, [], 0)
        for node in self._joint.snapshots:
            self._snapshots[node] = snapshots.write_snapshot(self._graph, node, self._made[node, 0])
        for node in self._joint.forward:
            self._add_regions(node)
            self._add(node, [self._made[read, 0] for read in node.all_input_nodes], 0, "is_forward")
        for step in steps_of(self._joint.training, self._schedule):
            if not self._is_forward(step.position):
                self._run(step.node, step.position)
        self._write_output()
        self._graph.lint()
        return self._graph

    def _is_forward(self, number: int) -> bool:
        return self._joint.training.nodes[number].forward

    def _is_region(self, node: fx.Node) -> bool:
        return node.op == "get_attr" and isinstance(getattr(self._module, str(node.target), None), fx.GraphModule)

    def _add_regions(self, node: fx.Node) -> None:
        """Adds the graphs that a node calls just before it: torch would save those of the backward pass, as values."""
        for read in filter(self._is_region, node.all_input_nodes):
            self._add(read, [], 0)

    def _run(self, number: int, position: int) -> None:
        node = self._joint.order[number]
        self._add_regions(node)
        copy = self._copy_at(number, position) if self._is_forward(number) else 0
        early = snapshots.reads_snapshot(self._joint.training, number)
        if node in self._joint.masks:
            self._made[node, copy] = self._product(node, position, early)
            return
        self._add(node, [self._value(read, position, early) for read in node.all_input_nodes], copy, "is_backward")

    def _product(self, node: fx.Node, position: int, early: bool) -> fx.Node:
        """The output of a dropout from its mask: torch's gradient of it is the same product, in the same order."""
        mask = mask_of(node)
        assert mask is not None
        data, scale = self._value(node.all_input_nodes[0], position, early), 1.0 / (1.0 - float(node.args[1]))
        args = (data, self._made[mask, 0], scale)
        target = torch.ops.aten.native_dropout_backward.default
        new = self._graph.create_node("call_function", target, args, {}, node.name + COPY_SUFFIX)
        new.meta = {**node.meta, "val": node.meta["val"][0], "partitioner_tag": "is_backward"}
        new.meta.pop("recompute", None)
        if "tensor_meta" in new.meta:
            new.meta["tensor_meta"] = new.meta["tensor_meta"][0]
        return new

    def _copy_at(self, number: int, position: int) -> int:
        """Which copy of a node's outputs a reader at a position of the base order finds."""
        return bisect_right(self._schedule.get(number, ()), position)

    def _value(self, node: fx.Node, position: int, early: bool = False) -> fx.Node:
        """What a reader in the backward pass finds for a node: the saved value, a copy, or a view of either.

        An ``early`` reader is one that eager mode runs in the forward pass: it finds inputs as they were there.
        """
        if early and node in self._snapshots:
            return self._snapshots[node]
        number = self._joint.number_of.get(node)
        if number is not None:
            forward = node.op == "call_function" and self._is_forward(number)
            return self._made[node, self._copy_at(number, position) if forward else 0]
        if node in self._forward and (safety.is_made_once(node) or not self._is_tensor(node)):
            return self._made[node, 0]
        base = node.args[0] if node.target is operator.getitem else None
        if base in self._joint.masks:
            copy = self._copy_at(self._joint.number_of[base], position) if node.args[1] == 0 else 0
            return self._made[base if copy else node, copy]
        reads = [self._value(read, position, early) for read in node.all_input_nodes]
        may_be_saved = node in self._forward and not self._is_view_of_input(node)
        if may_be_saved and all(made is self._made[read, 0] for made, read in zip(reads, node.all_input_nodes)):
            return self._made[node, 0]
        key = node, tuple(reads)
        if key not in self._views:
            self._views[key] = self._copied(node, reads, "is_backward", node in self._forward)
        return self._views[key]

    def _is_view_of_input(self, node: fx.Node) -> bool:
        """Whether a view reads a parameter or another input: saved, Inductor would take it for memory to free."""
        return any(read.op == "placeholder" and self._is_tensor(read) for read in node.all_input_nodes)

    @staticmethod
    def _is_tensor(node: fx.Node) -> bool:
        return any(isinstance(value, torch.Tensor) for value in safety.values_of(node))

    def _add(self, node: fx.Node, reads: Sequence[fx.Node], copy: int, tag: str = "") -> None:
        self._made[node, copy] = self._copied(node, reads, tag, copy > 0)

    def _copied(self, node: fx.Node, reads: Sequence[fx.Node], tag: str, again: bool) -> fx.Node:
        made = dict(zip(node.all_input_nodes, reads))
        run = safety.second_run(node) if again else None
        target, args, kwargs = (node.target, node.args, node.kwargs) if run is None else (run.target, run.args, {})
        args, kwargs = map_arg((args, kwargs), made.__getitem__)
        name = node.name + COPY_SUFFIX if again else node.name
        new = self._graph.create_node(node.op, target, args, kwargs, name, node.type)
        # a mark of a checkpoint would have the default partitioner decide once more
        new.meta = {key: value for key, value in node.meta.items() if key != "recompute"}
        if run is not None:
            new.meta["val"] = tuple(node.meta["val"][: run.outputs])
            new.meta.pop("tensor_meta", None)
        if tag and not str(new.meta.get("partitioner_tag")).startswith("must_be"):
            new.meta["partitioner_tag"] = tag
        return new

    def _write_output(self) -> None:
        (end,) = (node for node in self._module.graph.nodes if node.op == "output")
        args = map_arg(end.args, lambda node: self._value(node, _AS_TRACED))
        self._graph.output(args[0]).meta = dict(end.meta)
