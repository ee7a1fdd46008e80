"""The options ``keep`` and ``recompute``: names and patterns of nodes and operators, as of `echo.plans.options`."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import Iterable, Mapping, NamedTuple

from echo.errors import OptionError, matches_no_node
from echo.system.threads import ONCE
from echo.torch.capture import JointGraph

logger = logging.getLogger(__name__)
_MUST_SAVE = "a policy of torch.utils.checkpoint says MUST_SAVE"


class Wishes(NamedTuple):
    """What the user insists on, by numbers of nodes: ``kept`` ones are saved, with the reason; others run again."""

    kept: Mapping[int, str] = {}
    again: frozenset[int] = frozenset()


def wishes(joint: JointGraph, keep: Iterable[str] = (), recompute: Iterable[str] = (), strict: bool = False) -> Wishes:
    """The nodes that names and patterns match; and those that a checkpoint policy says must be saved.

    A pattern that matches no node of this graph costs one warning: another graph of the same model may have the node.

    Raises:
        OptionError: a node is to be kept and to run again, or to run again and must not; with ``strict``, a pattern
            matches no node.
    """
    kept = {number: _MUST_SAVE for number, node in joint.training.operators()
            if node.forward and str(joint.order[number].meta.get("recompute")).endswith("MUST_SAVE")}  # fmt: skip
    kept.update({number: f"kept: matches {pattern!r}" for number, pattern in _matches(joint, "keep", keep, strict)})
    again = dict(_matches(joint, "recompute", recompute, strict))
    for number, pattern in again.items():
        node = joint.training.nodes[number]
        reason = kept.get(number) or joint.reasons.get(joint.order[number], "")
        if not reason and node.stateful:
            reason = "it draws random numbers, or reads an input that is written in the same step"
        if reason:
            raise OptionError(f"recompute: {node.name!r} ({node.op}), which matches {pattern!r}, is saved: {reason}")
    return Wishes(kept, frozenset(again))


def _matches(joint: JointGraph, option: str, patterns: Iterable[str], strict: bool) -> list[tuple[int, str]]:
    """The forward nodes that each pattern matches; copies of inputs are no operators of the program."""
    forward = [(number, node) for number, node in joint.training.operators()
               if node.forward and joint.order[number].op == "call_function"]  # fmt: skip
    found: list[tuple[int, str]] = []
    for pattern in patterns:
        hits = [number for number, node in forward if fnmatchcase(node.name, pattern) or fnmatchcase(node.op, pattern)]
        found += [(number, pattern) for number in hits]
        if not hits:
            operators, names = (node.op for _, node in forward), (node.name for _, node in forward)
            _refuse(matches_no_node(option, pattern, operators, names), strict)
    return found


def _refuse(text: str, strict: bool) -> None:
    if strict:
        raise OptionError(text)
    logger.log(logging.WARNING if ONCE.first(text) else logging.DEBUG, "echo: %s", text)
