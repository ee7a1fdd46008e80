"""Which nodes may run again, and which readers take what a clone computed."""

from __future__ import annotations

from typing import Mapping

from echo.ir.op_spec import is_true
from echo.ir.ops import spec
from echo.ir.training_node import TrainingNode

# Operators that read their inputs through their inputs alone, in the forward pass and in their gradients.
#
# A map may run again, move, come out of bits or be given up early only if every operator that reads it is one of
# these by the table (`echo.ir.ops`). Others keep an address or a state between the passes: what they read has to stay
# where it was. The table is no matter of opinion: ``tests/operators`` holds every operator that MXNet registers
# against stock MXNet, with its inputs and outputs recomputed, moved and unpacked by force, and its memory taken over
# by others.
#
# The table stands on one condition: what stock MXNet does not compute in place must not be computed in place now. A
# map that runs again has one reader less, and MXNet then works in place where it did not before. An array that is
# computed over one in a layout of oneDNN takes on that layout, and max Pooling's gradient, which reads where its
# maxima are by the layout of the forward pass, finds others; the gradients of some operators come out as other
# numbers (`echo.ir.op_spec.OpSpec.in_place`).


def why_not_reader(op: str, attrs: Mapping[str, str], position: int = 0) -> str:
    """Why the map that an operator reads at this input has to stay where it is; empty if it may run again, or move."""
    facts = spec(op)
    if not facts.address_stable_reads:
        return f"{op} is not known to read its inputs through its inputs alone"
    if facts.movable_inputs is not None and position not in facts.movable_inputs:
        return f"input {position} of {op} must not move"
    if facts.in_place(attrs):
        return f"the gradient of {op} with {facts.in_place.shown(attrs)} depends on whether it works in place"
    if facts.draws(attrs):  # and it crashes
        return f"{op} with {facts.draws.shown(attrs)} was never tried"
    return ""


# Which nodes of a training graph may run twice, and which of their outputs are computed again then.


def recomputable_outputs(node: TrainingNode, device: str, hook: bool) -> tuple[int, ...]:
    """The outputs of a forward node that may be recomputed, none where that is not safe.

    ``device`` is MXNet's device type ("cpu" or "gpu"), ``hook`` whether the native hook applies the plan.
    """
    return () if why_not(node, device, hook) else all_outputs(node, hook)


def all_outputs(node: TrainingNode, hook: bool) -> tuple[int, ...]:
    """The outputs that are recomputed with a node, where that is safe."""
    # MXNet's own mirroring replaces a node as a whole
    return tuple(range(len(node.outputs))) if not hook or spec(node.op).every_output else (0,)


def why_not(node: TrainingNode, device: str, hook: bool) -> str:
    """The reason why this node must not run twice, empty where it may."""
    facts = spec(node.op)
    if not facts.recomputable:
        return f"{node.op} is not known to be safe to run twice"
    if not hook and facts.needs_hook:
        return f"{node.op} needs the native hook"
    if device != "cpu" and facts.needs_cpu and not is_true(node.attrs, "cudnn_off"):
        return f"{node.op} has side effects on cuDNN"
    if device != "cpu" and facts.rewrites and not hook:
        return f"{node.op} writes into its input on cuDNN, which only the native hook's clone leaves as it is"
    if facts.clone_op:
        return why_not_dropout(node.attrs)
    if node.random or facts.draws(node.attrs):
        return f"{node.op} draws random numbers here"
    if node.mutates and not facts.rewrites:
        return f"{node.op} writes into its input"
    return ""


def why_not_dropout(attrs: Mapping[str, str]) -> str:
    """Why the output of a Dropout is no product of its input and a mask of its size; empty where it is."""
    if attrs.get("axes", "()") not in ("()", "[]", "None"):
        return "Dropout over axes has a mask of another shape"
    if float(attrs.get("p", "0.5")) == 0:
        return "Dropout with p=0 makes no mask"
    return ""
