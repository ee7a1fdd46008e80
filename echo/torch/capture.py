"""AOTAutograd's joint graph as a problem for echo's planner.

The planner's unit is the storage, as in torch's allocator: a view costs nothing, and holds the storage that it looks
at. Each operator that makes storages is a node of the training graph with one output for each of them. Parameters,
inputs and tangents are variables: their memory is not the planner's. Outputs of the model and gradients live to the end
of the step. Numbers (sizes that torch traces) take no bytes and are saved, never computed again. Dropout is two nodes,
of which the first draws the mask and never runs again, and the second is the product with it.

What the model's outputs need is the forward pass, in torch's order. The rest is the backward pass; of it, what depends
on no tangent moves to just before its first reader, as Autograd would run it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Mapping, Sequence

import torch
from torch import fx

from echo.errors import GraphError, UnsupportedError
from echo.ir.graph import VARIABLE, Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.policies.data_graph import data_graph
from echo.torch import compat, safety, snapshots
from echo.torch.storages import Storages, aliased, nbytes, storage_bytes, storage_key

BYTES = 3  # MXNet's type flag: one byte an element
# In bfloat16 and float16 torch rounds the factor of a dropout in its gradient, and not in the forward pass.
_EXACT = (torch.float32, torch.float64)


@dataclass(frozen=True)
class JointGraph:
    """A joint graph and its training graph.

    ``order`` has the fx node of each node of ``training``: variables, the forward pass, the backward pass. A dropout is
    there twice, with ``number_of`` its product; ``masks`` has for it the number of the node that draws. So is an input
    that the compiler copies, with ``number_of`` the copy, and one with a snapshot, with ``number_of`` the input and
    ``snapshots`` the number of the copy. ``aliases`` maps each view to the node whose memory it looks at, ``reasons``
    each forward node that must not run again to the reason. ``forward`` and ``backward`` are all nodes of the passes in
    order, views and numbers too. ``outputs`` are the model's outputs, ``gradients`` what the backward pass returns;
    either may contain None. ``channels_last``: convolutions run in this layout.
    """

    training: TrainingGraph
    order: tuple[fx.Node, ...]
    number_of: Mapping[fx.Node, int]
    masks: Mapping[fx.Node, int]
    aliases: Mapping[fx.Node, fx.Node]
    reasons: Mapping[fx.Node, str]
    forward: tuple[fx.Node, ...]
    backward: tuple[fx.Node, ...]
    outputs: tuple[Any, ...]
    gradients: tuple[Any, ...]
    channels_last: bool = False
    snapshots: Mapping[fx.Node, int] = field(default_factory=dict)


def is_tangent(node: fx.Node) -> bool:
    """Whether a node is a gradient of an output, which the backward pass is given."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def joint_graph(
    module: fx.GraphModule,
    num_forward_outputs: int,
    allowed: Iterable[str] = (),
    copied: Iterable[fx.Node] = (),
    *,
    snapshots: bool = False,
) -> JointGraph:
    """Reads a joint graph.

    ``allowed`` are custom operators that may run again (`echo.torch.safety`), ``copied`` inputs that the compiler
    copies into another layout at the start of a step (`echo.torch.inductor`). With ``snapshots``, what runs again reads
    copies of small inputs (`echo.torch.snapshots`).

    Raises:
        UnsupportedError: it has tensors without a storage (sparse ones, subclasses), or no backward pass.
        GraphError: it has no output.
    """
    return _Reader(module, num_forward_outputs, frozenset(allowed), frozenset(copied), snapshots).read()


class _Reader:
    def __init__(
        self, module: fx.GraphModule, num_forward_outputs: int, allowed: frozenset[str], copied: frozenset[fx.Node],
        with_snapshots: bool,
    ) -> None:  # fmt: skip
        self.nodes = [node for node in module.graph.nodes if node.op != "output"]
        self.allowed, self.copied, self.with_snapshots = allowed, copied, with_snapshots
        ends = [node for node in module.graph.nodes if node.op == "output"]
        if len(ends) != 1:
            raise GraphError(f"expected one output of a joint graph, got {len(ends)}")
        flat = compat.flat(ends[0].args)
        self.outputs, self.gradients = flat[:num_forward_outputs], flat[num_forward_outputs:]
        self.place = {node: place for place, node in enumerate(self.nodes)}
        self.aliases = {node: alias for node in self.nodes
                        if not safety.is_mutable(node) and (alias := aliased(node)) is not None}  # fmt: skip
        self.written = compat.written_inputs(module, num_forward_outputs) | self._written_by_nodes()
        self.after_tangents = self._after_tangents()
        self.traced_backward = self.after_tangents | self._after_outputs()

    def _after_tangents(self) -> set[fx.Node]:
        found: set[fx.Node] = set()
        for node in self.nodes:
            if is_tangent(node) or any(read in found for read in node.all_input_nodes):
                found.add(node)
        return found

    def _after_outputs(self) -> set[fx.Node]:
        """Operators traced after all that the outputs need: gradients that depend on no tangent are among them.

        Such a gradient is that of a loss whose function has its own, as MXNet's ``SoftmaxOutput``.
        """
        needed = _with_inputs(node for node in self.outputs if isinstance(node, fx.Node))
        last = max((self.place[node] for node in needed), default=-1)
        return {node for node in self.nodes[last + 1 :] if node.op == "call_function"}

    def read(self) -> JointGraph:
        forward = self._forward()
        backward = self._backward(set(forward))
        if not any(isinstance(node, fx.Node) for node in self.gradients):
            raise UnsupportedError("the graph has no backward pass")
        order = [node for node in self.nodes if node.op in ("placeholder", "get_attr")]
        variables = {node: number for number, node in enumerate(order)}
        order += [node for node in order if node in self.copied]
        early = self._early(forward, backward)
        again = self._read_early(early) if self.with_snapshots else []
        snapshots_of = {node: number for number, node in enumerate(again, len(order))}
        order += again
        masks: dict[fx.Node, int] = {}
        for node in filter(self._makes_memory, [*forward, *backward]):
            if mask_of(node) is not None:
                masks[node] = len(order)
                order.append(node)
            order.append(node)
        number_of = {node: number for number, node in enumerate(order)}
        number_of.update({node: variables[node] for node in again})
        storages = Storages(self.aliases, number_of, masks)
        of_early = Storages(self.aliases, {**number_of, **snapshots_of}, masks)
        written = {number_of[node] for node in self.written if node in number_of}
        maker = _Maker(storages, of_early, early, variables, snapshots_of, set(forward), written, self.allowed)
        nodes = [maker.made(number, node) for number, node in enumerate(order)]
        ends = [storages.entry(node) for node in [*self.outputs, *self.gradients] if isinstance(node, fx.Node)]
        graph = data_graph(nodes, list(dict.fromkeys(end for end in ends if end is not None)), (0.0,) * len(nodes))
        return JointGraph(graph.training, tuple(order), number_of, masks, self.aliases, maker.reasons, tuple(forward),
                          tuple(backward), tuple(self.outputs), tuple(self.gradients),
                          snapshots=snapshots_of)  # fmt: skip

    def _early(self, forward: Sequence[fx.Node], backward: Sequence[fx.Node]) -> set[fx.Node]:
        """The nodes that eager mode runs in the forward pass: some of them run in the backward pass alone here."""
        return {*forward, *(
            node for node in backward if node not in self.after_tangents
            and (node not in self.traced_backward or node.meta.get("partitioner_tag") == "is_forward")
        )}  # fmt: skip

    def _read_early(self, early: set[fx.Node]) -> list[fx.Node]:
        """The inputs with a snapshot that these nodes read, and nothing writes."""
        strided = {self._root(node) for node in self.nodes if safety.operator_name(node).startswith("as_strided")}
        read = {self._root(read) for node in early if self._makes_memory(node) for read in node.all_input_nodes}
        return [node for node in self.nodes if node in read - strided - self.written - self.copied
                and not is_tangent(node) and snapshots.snapshot_bytes(node)]  # fmt: skip

    def _makes_memory(self, node: fx.Node) -> bool:
        """Whether a node is an operator of the training graph: it makes a storage, or has an effect."""
        if node in self.aliases:
            return False
        return _has_effect(node) or any(isinstance(value, torch.Tensor) for value in safety.values_of(node))

    def _forward(self) -> list[fx.Node]:
        """What the outputs need, what writes into an input, and numbers that need no tangent, in torch's order.

        What is worth saving for the backward pass runs as soon as its inputs are there.
        """
        needed = [node for node in self.outputs if isinstance(node, fx.Node)]
        needed += [node for node in self.nodes if self._has_to_be_in_forward(node)]
        found = _with_inputs(needed)
        if any(node in self.after_tangents for node in found):
            raise UnsupportedError("the forward pass depends on a tangent")
        ready = {node: self.place[node] for node in found}
        for node in sorted(_with_inputs(self._worth_saving(found)) - found, key=self.place.__getitem__):
            ready[node] = max((ready[read] for read in node.all_input_nodes), default=self.place[node])
        for node in self.nodes:  # the backward pass may read outputs of a node that the forward pass does not
            if node.target is operator.getitem and node.all_input_nodes[0] in ready:
                ready.setdefault(node, ready[node.all_input_nodes[0]])
        calls = [node for node in ready if node.op == "call_function"]
        return sorted(calls, key=lambda node: (ready[node], self.place[node]))

    def _worth_saving(self, forward: set[fx.Node]) -> list[fx.Node]:
        """What the backward pass alone needs, but takes less memory than what it is computed from.

        Else the inputs would be kept for it: a linear layer's output for a gate that was cut out of it. Inputs that
        the backward pass reads anyway cost nothing.
        """
        kept = {key for node in self.after_tangents for read in node.all_input_nodes
                if read not in self.after_tangents for key in storage_bytes(read)}  # fmt: skip
        kept |= {key for node in self.nodes if node.op != "call_function" for key in storage_bytes(node)}
        early: list[fx.Node] = []
        late: set[fx.Node] = set()
        for node in self.nodes:
            if node.op != "call_function" or node in forward or node in self.after_tangents or node in self.aliases:
                continue
            roots = [self._root(read) for read in node.all_input_nodes]
            inputs = {key: size for root in roots for key, size in storage_bytes(root).items() if key not in kept}
            outputs = storage_bytes(node)
            movable = not _has_effect(node) and node.meta.get("partitioner_tag") != "must_be_in_backward"
            if movable and late.isdisjoint(roots) and sum(outputs.values()) < sum(inputs.values()):
                early.append(node)
                kept |= outputs.keys()
            else:
                late.add(node)
                kept |= inputs.keys()
        return early

    def _has_to_be_in_forward(self, node: fx.Node) -> bool:
        if node.op != "call_function" or node in self.after_tangents:
            return False
        if node.meta.get("partitioner_tag") in ("must_be_in_backward", "is_backward"):
            return False
        is_number = not any(isinstance(value, torch.Tensor) or value is None for value in safety.values_of(node))
        return _has_effect(node) or is_number or self._is_bound_to_its_place(node)

    def _is_bound_to_its_place(self, node: fx.Node) -> bool:
        """Whether a node without tangents would come to something else in the backward pass.

        It draws numbers, or reads an input that is written before the backward pass begins.
        """
        if bool(safety.why_not_again(node, self.allowed)):
            return True
        return any(self._root(read) in self.written for read in node.all_input_nodes)

    def _root(self, node: fx.Node) -> fx.Node:
        while node in self.aliases:
            node = self.aliases[node]
        return node

    def _backward(self, forward: set[fx.Node]) -> list[fx.Node]:
        """All other nodes that something needs; those without a tangent just before their first reader."""
        ends = [node for node in self.gradients if isinstance(node, fx.Node)]
        needed = _with_inputs([*ends, *filter(_has_effect, self.nodes)])
        nodes = [node for node in self.nodes if node in needed and node not in forward and node.op == "call_function"]
        first_use: dict[fx.Node, int] = {}
        for node in reversed(nodes):
            uses = [first_use[user] for user in node.users if user in first_use]
            pinned = node in self.traced_backward or safety.is_mutable(node) or not uses
            first_use[node] = self.place[node] if pinned else min(uses)
        return sorted(nodes, key=lambda node: (first_use[node], first_use[node] == self.place[node], self.place[node]))

    def _written_by_nodes(self) -> set[fx.Node]:
        """The nodes into whose memory others write: a later run of their readers would read other values."""
        return {self._root(read) for node in self.nodes if _has_effect(node) and safety.is_mutable(node)
                for read in _arguments_written(node)}  # fmt: skip


def _has_effect(node: fx.Node) -> bool:
    return node.op == "call_function" and (safety.is_mutable(node) or bool(node.is_impure()))


def _arguments_written(node: fx.Node) -> Iterator[fx.Node]:
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            yield from (one for one in compat.flat(value) if isinstance(one, fx.Node))


def _with_inputs(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def mask_of(node: fx.Node) -> fx.Node | None:
    """The mask of a dropout whose output is the product of its input, the mask and a number, to the bit."""
    if safety.operator_name(node) != "native_dropout" or len(node.args) < 3 or node.args[2] is not True:
        return None
    value = node.meta["val"][0]
    if value.device.type != "cpu" or value.dtype not in _EXACT or not 0 < float(node.args[1]) < 1:
        return None
    return next((user for user in node.users if user.target is operator.getitem and user.args[1] == 1), None)


@dataclass
class _Maker:
    """Makes nodes of a training graph, and notes why some must not run again."""

    storages: Storages
    of_early: Storages  # as `early` nodes find them: snapshots instead of inputs
    early: set[fx.Node]
    variables: Mapping[fx.Node, int]
    snapshots: Mapping[fx.Node, int]
    forward: set[fx.Node]
    written: set[int]
    allowed: frozenset[str]
    reasons: dict[fx.Node, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.copies = frozenset(self.snapshots.values())

    def made(self, number: int, node: fx.Node) -> TrainingNode:
        if node.op != "call_function" and number == self.variables[node]:
            return TrainingNode(VARIABLE, node.name, (TensorType((0,), BYTES),))
        if node.op != "call_function":
            return self._copy(number, node)
        # what is made once is a new value of a buffer, which lives to the end of the step anyway
        reads = self._entries(node, (read for read in node.all_input_nodes if not safety.is_made_once(read)))
        name, sizes = safety.operator_name(node), _sizes(node)
        forward, fixed = node in self.forward, False
        if self.storages.masks.get(node) == number:
            return self._node(f"{name}_mask", f"{node.name}_mask", sizes[1:], reads, number, forward, True)
        if node in self.storages.masks:
            reads, sizes = (*reads, Entry(self.storages.masks[node])), sizes[:1]
            fixed = bool(self._why_not_variables(reads))
        elif forward:
            again = safety.second_run(node)
            read_again = reads if again is None else self._entries(node, again.args)
            reason = safety.why_not_again(node, self.allowed) or self._why_not_variables(read_again)
            fixed = bool(reason)
            if reason:
                self.reasons[node] = reason
        return self._node(name, node.name, sizes, reads, number, forward, fixed)

    def _copy(self, number: int, node: fx.Node) -> TrainingNode:
        """The copy of an input: its snapshot, or one in the layout that the compiler wants."""
        source = (Entry(self.variables[node]),)
        if self.snapshots.get(node) == number:
            op, name, size = snapshots.OPERATOR, snapshots.snapshot_name(node), snapshots.snapshot_bytes(node)
        else:
            op, name, size = "copy", f"{node.name}_copy", nbytes(node.meta["val"])
        return self._node(op, name, [size], source, number, True, True)

    def _entries(self, node: fx.Node, reads: Iterable[Any]) -> tuple[Entry, ...]:
        """The entries in whose memory a node finds what it reads, each once; what is no node has none."""
        storages = self.of_early if node in self.early else self.storages
        entries = [storages.entry(read) for read in reads if isinstance(read, fx.Node)]
        return tuple(dict.fromkeys(entry for entry in entries if entry is not None))

    def _why_not_variables(self, reads: Sequence[Entry]) -> str:
        written = any(entry.node in self.written for entry in reads)
        return "it reads an input that is written in the same step" if written else ""

    def _node(
        self, op: str, name: str, sizes: Iterable[int], reads: Sequence[Entry], number: int, forward: bool, fixed: bool
    ) -> TrainingNode:
        """A node; in the forward pass it reads inputs themselves, so that a snapshot for it alone takes no memory."""
        inside = {at: 0 for at, entry in enumerate(reads) if forward and entry.node in self.copies}
        outputs, original = tuple(TensorType((size,), BYTES) for size in sizes), number if forward else None
        return TrainingNode(
            op, name, outputs, tuple(reads), forward=forward, original=original, stateful=fixed, in_kernel=inside
        )


def _sizes(node: fx.Node) -> list[int]:
    """The bytes that each output adds: none where it lies in the memory of an input, or of an output before it."""
    seen = {storage_key(value) for read in node.all_input_nodes for value in safety.values_of(read)}
    sizes = []
    for value in safety.values_of(node):
        key = storage_key(value)
        sizes.append(0 if key in seen else nbytes(value))
        seen.add(key)
    return sizes
