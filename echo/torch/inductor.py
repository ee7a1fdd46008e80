"""What Inductor makes of a joint graph: kernels of several operators, copies of inputs in another layout.

The peak of live bytes under Inductor differs from that of the operators in three ways that matter, and are modelled
here. A value that only operators of its own kernel read takes no memory. Convolutions in two dimensions run in the
layout *channels last*, and a weight or an image that has another one is copied at the start of the step, for the
forward and the backward pass. And on CPUs, convolutions copy their weights and gradients into a third layout while they
run.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Iterable, Iterator, Mapping, Sequence

import torch
from torch import fx

from echo.errors import one_line, reraise_interruption
from echo.ir.schedule import RecomputeSchedule, needed, once
from echo.ir.training_node import TensorType, TrainingNode
from echo.policies.data_graph import data_graph
from echo.torch import compat, safety, timing
from echo.torch.capture import BYTES, JointGraph, joint_graph
from echo.torch.storages import nbytes

logger = logging.getLogger(__name__)

# Pointwise operators without torch's tag, among them those that Inductor computes where they are read.
_POINTWISE = frozenset({
    "_to_copy", "clone", "convert_element_type", "full", "full_like", "gelu_backward", "iota", "inductor_lookup_seed",
    "inductor_random", "native_dropout_backward", "ones_like", "scalar_tensor", "tanh_backward", "sigmoid_backward",
    "threshold_backward", "where", "zeros_like",
})  # fmt: skip
_VIEWS = frozenset({
    "view", "_unsafe_view", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "t", "alias",
    "detach", "getitem",
})  # fmt: skip
# Of these, Inductor computes none again on a CPU: it stores what several kernels read.
_SLOW = frozenset({"exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"})
_CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})


def is_pointwise(node: fx.Node) -> bool:
    """Whether Inductor computes each element of a node's output from elements at the same place."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    tag = getattr(torch.Tag, "pointwise", None)
    return (tag is not None and tag in target.tags) or safety.operator_name(node) in _POINTWISE


def fusion_groups(joint: JointGraph) -> dict[fx.Node, int]:
    """The fused kernel of each pointwise node: those that read each other and have as many elements share one.

    All nodes of a kernel lie behind the same operators that are not pointwise: a sum with the product of what another
    part of the kernel computed could not be in it. A simple model: Inductor also fuses reductions with what they read,
    and splits very large kernels.
    """
    group: dict[fx.Node, int] = {}
    stage: dict[fx.Node, int] = {}
    for nodes in (joint.forward, joint.backward):
        for node in nodes:
            reads = list(through_views(node, joint))
            stage[node] = max((stage[read] + (read not in group) for read in reads if read in stage), default=0)
            if node in joint.number_of and is_pointwise(node):
                near = [read for read in reads if read in group and stage[read] == stage[node]
                        and elements(read) == elements(node)]  # fmt: skip
                group[node] = group[near[0]] if near else len(group)
    return group


def through_views(node: fx.Node, joint: JointGraph) -> Iterator[fx.Node]:
    """The nodes in whose memory a node reads."""
    for read in node.all_input_nodes:
        yield _base(read, joint)


def users_through_views(node: fx.Node) -> Iterator[fx.Node]:
    """The readers of a node, and of views of it."""
    for user in node.users:
        if safety.operator_name(user) in _VIEWS:
            yield from users_through_views(user)
        else:
            yield user


def elements(node: fx.Node) -> int:
    """The elements of a node's first output; 0 where it is no tensor."""
    value = safety.values_of(node)[0]
    return int(nbytes(value) // value.element_size()) if isinstance(value, torch.Tensor) else 0


def inputs_in_kernels(joint: JointGraph) -> list[dict[int, int]]:
    """For each node of the training graph, the inputs that it reads in the kernel which computes them.

    A node of the forward pass that runs again is in a kernel with the pointwise operators of the backward pass that
    read it. An input that Inductor stores if several kernels read it has the number of the reader's kernel, others 0.
    """
    groups, forward = fusion_groups(joint), set(joint.forward)
    slow = _slow_values(joint, groups)

    def is_inside(read: fx.Node, node: fx.Node) -> bool:
        if read not in groups or node not in groups or elements(read) != elements(node):
            return False
        return groups[read] == groups[node] or (read in forward and node not in forward)

    return [
        {position: (groups[node] + 1) * (read in slow) for position, entry in enumerate(one.inputs)
         if is_inside(read := joint.order[entry.node], node)}
        for node, one in zip(joint.order, joint.training.nodes)
    ]  # fmt: skip


def _slow_values(joint: JointGraph, groups: Mapping[fx.Node, int]) -> set[fx.Node]:
    """The pointwise nodes on a CPU whose kernel computes a function of `_SLOW`: theirs, or that of a single input."""
    found: set[fx.Node] = set()
    for node in groups:
        if timing.device_of(node).type != "cpu":
            continue
        inlined = (read for read in through_views(node, joint) if read in found and len(read.users) == 1)
        if safety.operator_name(node) in _SLOW or any(inlined):
            found.add(node)
    return found


def joint_graph_of_inductor(
    module: fx.GraphModule, num_forward_outputs: int, allowed: Iterable[str] = ()
) -> JointGraph:
    """Reads a joint graph as Inductor runs it; arguments and errors are those of `echo.torch.capture.joint_graph`.

    Values that stay in a kernel take no memory, and convolutions take their scratch memory for as long as they run.
    """
    channels_last = compat.prefers_channels_last(module)
    copied = _inputs_in_other_layout(module) if channels_last else set()
    joint = joint_graph(module, num_forward_outputs, allowed, copied)
    nodes = [
        _with_scratch(one.having(in_kernel=inside), node, channels_last)
        for node, one, inside in zip(joint.order, joint.training.nodes, inputs_in_kernels(joint))
    ]
    training = data_graph(nodes, joint.training.outputs, (0.0,) * len(nodes)).training
    return replace(joint, training=training, channels_last=channels_last)


def schedule_of_torch(
    module: fx.GraphModule, joint: JointGraph, inputs: Sequence[Any], options: Mapping[str, Any]
) -> RecomputeSchedule:
    """What runs again without echo, by torch's own partitioner for Inductor: all that it does not save.

    ``module`` stays as it is. Where torch's partitioner fails, that is nothing.
    """
    try:
        _, backward = compat.min_cut_partition(compat.copied(module), inputs, **options)
    except Exception as error:  # torch's, which would end a program without echo
        reraise_interruption(error)
        logger.debug("echo: torch's own partitioner fails: %s", one_line(error))
        return {}
    names = {node.name for node in backward.graph.nodes if node.op == "placeholder"}
    saved = [node for node in joint.forward if node.name in names]
    # what torch computes early, and this reading of the graph late: that is what it is computed from
    saved += [read for node in joint.backward if node.name in names for read in node.all_input_nodes]
    fixed = {joint.number_of[base] for base in (_base(node, joint) for node in saved) if base in joint.number_of}
    training = joint.training
    again = [number for number, node in training.operators()
             if node.forward and not node.stateful and number not in fixed]  # fmt: skip
    return needed(training, once(training, again))


def _base(node: fx.Node, joint: JointGraph) -> fx.Node:
    """The node in whose memory a view lies."""
    while node in joint.aliases and node not in joint.number_of:
        node = joint.aliases[node]
    return node


def is_convolution(node: fx.Node) -> bool:
    """Whether a node is a convolution, or the gradient of one."""
    return safety.operator_name(node) in _CONVOLUTIONS


def _with_scratch(one: TrainingNode, node: fx.Node, channels_last: bool) -> TrainingNode:
    """A convolution with one more output, which nothing reads: it is gone when the node has run."""
    if not is_convolution(node):
        return one
    scratch = timing.scratch_of_run(node, timing.device_of(node), channels_last)
    return one.having(outputs=(*one.outputs, TensorType((scratch,), BYTES))) if scratch else one


def _inputs_in_other_layout(module: fx.GraphModule) -> set[fx.Node]:
    """The inputs of a joint graph of which Inductor makes a copy in the layout channels last."""
    read = (one for node in module.graph.nodes if is_convolution(node) for one in node.all_input_nodes)
    return {node for node in read if node.op == "placeholder" and _is_to_be_copied(node.meta.get("val"))}


def _is_to_be_copied(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) and value.dim() == 4
            and not value.is_contiguous(memory_format=torch.channels_last))  # fmt: skip
