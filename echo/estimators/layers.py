"""Layers of a training graph by readable names, for reports alone."""

from __future__ import annotations

import re

from echo.ir.graph import VARIABLE
from echo.ir.schedule import CLONE_SUFFIX
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

MIRROR_SUFFIX = "_mirror"  # which MXNet gives to what it runs again
_COUNTER = re.compile(r"^t?\d+$|(?<=\D)\d+$")
_NUMBERED = re.compile(r"(_?[a-z_]*[a-z])\d+")
_OF_FORWARD = ("_backward", CLONE_SUFFIX, MIRROR_SUFFIX)


def layer_of(node: TrainingNode) -> str:
    """Returns a layer's name by one node: the first words of the node's name, with "*" for counters."""
    return layer_named(node.name) or node.op


def layer_named(name: str) -> str:
    """Returns the layer's name that a node with this name gives, empty if the name has no words."""
    words = [_COUNTER.sub("*", word) for word in name.split("_") if word]
    return "_".join(words[:2])


class Layers:
    """Names the layer of each node of a training graph.

    A gradient, or what runs again, counts to the layer of its node of the forward pass. What the user gave no name, and
    MXNet numbers (``broadcast_add12``, ``_plus3``), counts to the layer of the first map that it reads.
    """

    def __init__(self, training: TrainingGraph) -> None:
        self._nodes = training.nodes
        self._forward = {node.name: number for number, node in enumerate(training.nodes) if node.forward}
        self._known: dict[int, str] = {}

    def __call__(self, number: int) -> str:
        """The layer of the node with this number."""
        path = [number]
        while path[-1] not in self._known:
            following = self._following(path[-1])
            if following is None:
                self._known[path[-1]] = layer_of(self._nodes[path[-1]])
            else:
                path.append(following)
        layer = self._known[path[-1]]
        self._known.update(dict.fromkeys(path, layer))
        return layer

    def _following(self, number: int) -> int | None:
        """The node to whose layer this one counts; None where it has a layer of its own."""
        node = self._nodes[number]
        for suffix in _OF_FORWARD:
            source = self._forward.get(node.name[: -len(suffix)]) if node.name.endswith(suffix) else None
            if source is not None and source < number:
                return source
        if not has_automatic_name(node.op, node.name):
            return None
        reads = (entry.node for entry in node.inputs if self._nodes[entry.node].op != VARIABLE)
        return next((read for read in reads if read < number), None)


def has_automatic_name(op: str, name: str) -> bool:
    """Whether MXNet gave a node of this operator its name (``broadcast_add12``, ``_plus3``)."""
    numbered = _NUMBERED.fullmatch(name)
    return numbered is not None and (name.startswith("_") or numbered[1] == op.lower().lstrip("_"))
