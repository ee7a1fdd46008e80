"""Whether the nodes of a training graph fit together.

Files and programs may hold anything, and the native planner believes what it is handed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Sequence

from echo.errors import GraphError

if TYPE_CHECKING:
    from echo.ir.training_node import TrainingNode


def check_nodes(nodes: Sequence[TrainingNode]) -> None:
    """Every number in a node names an input, an output or a node that is there.

    Raises:
        GraphError: one does not; the message names the node.
    """
    sizes = [len(node.outputs) for node in nodes]
    for number, node in enumerate(nodes):
        for entry in node.inputs:
            if not (0 <= entry[0] < number and 0 <= entry[1] < sizes[entry[0]]):
                raise GraphError(f"node {number} ({node.name!r}): no output {tuple(entry)} before it")
        for dep in node.control_deps:
            if not 0 <= dep < number:
                raise GraphError(f"node {number} ({node.name!r}): control_deps: no node {dep} before it")
        _check_positions(number, node)


def _check_positions(number: int, node: TrainingNode) -> None:
    inputs, outputs = len(node.inputs), len(node.outputs)
    for read, written, _ in node.inplace:
        if not (0 <= read < inputs and 0 <= written < outputs):
            raise GraphError(
                f"node {number} ({node.name!r}): inplace: there is no pair of input {read} and output {written}, "
                f"expected inputs below {inputs} and outputs below {outputs}"
            )
    for name, positions, count in (
        ("ignored", node.ignored, inputs), ("external", node.external, outputs), ("untouched", node.untouched, outputs),
    ):  # fmt: skip
        if positions and not _within(positions, count):
            raise GraphError(f"node {number} ({node.name!r}): {name}: expected numbers below {count}, got {positions}")


def _within(positions: Iterable[int], count: int) -> bool:
    return all(0 <= position < count for position in positions)
