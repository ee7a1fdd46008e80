"""Which nodes of a training graph may run twice, and which of their outputs are computed again then."""

from __future__ import annotations

from typing import Mapping

from echo.ir.attributes import is_true
from echo.ir.ops import spec
from echo.ir.training_node import TrainingNode


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
