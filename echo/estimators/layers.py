"""Layers of a training graph by readable names, for reports alone."""

from __future__ import annotations

import re

from echo.ir.clones import CLONE_SUFFIX
from echo.ir.graph import VARIABLE
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

MIRROR_SUFFIX = "_mirror"  # which MXNet gives to what it runs again
_COUNTER = re.compile(r"^t?\d+$|(?<=\D)\d+$")
_NUMBERED = re.compile(r"(_?[a-z_]*[a-z])\d+")
_OF_FORWARD = ("_backward", CLONE_SUFFIX, MIRROR_SUFFIX)


def layer_of(node: TrainingNode) -> str:
    """A layer's name by a node alone: the first words of the node's name, with "*" for counters."""
    words = [_COUNTER.sub("*", word) for word in node.name.split("_") if word]
    return "_".join(words[:2]) or node.op


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
        if not _is_numbered(node):
            return None
        reads = (entry.node for entry in node.inputs if self._nodes[entry.node].op != VARIABLE)
        return next((read for read in reads if read < number), None)


def _is_numbered(node: TrainingNode) -> bool:
    numbered = _NUMBERED.fullmatch(node.name)
    return bool(numbered) and (node.name.startswith("_") or numbered[1] == node.op.lower().lstrip("_"))  # type: ignore[index]
