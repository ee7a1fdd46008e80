"""A plan written into the JSON of a symbol, for https://netron.app and other viewers: attributes on its nodes.

The copy is for looking at. It is no symbol to train with: MXNet would take the attributes for parameters of operators.
"""

from __future__ import annotations

import copy
from typing import Any, Mapping

from echo.errors import GraphError
from echo.plans.decisions import Decision
from echo.plans.plan import Plan

DECISION, BYTES, REASON, FUSED, MISSED = "echo", "echo_bytes", "echo_reason", "echo_fused", "echo_not_fused"
NOTHING = "nothing"  # in the place of a decision


def annotated(symbol: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Returns the JSON value of a symbol, whose operators say what the plan does to their feature maps, if anything.

    Args:
        symbol: what ``symbol.tojson()`` gives, read.
        plan: a plan for it. Decisions on fused operators stand at the nodes whose names these have.

    Raises:
        GraphError: it is no symbol.
    """
    try:
        result: dict[str, Any] = copy.deepcopy(dict(symbol))
        nodes = [node for node in result["nodes"] if node["op"] != "null"]
        decisions: dict[str, list[Decision]] = {}
        for decision in plan.decisions:
            decisions.setdefault(decision.name, []).append(decision)
        for node in nodes:
            added = _attributes(node["op"], decisions.get(node["name"], [])) or _nothing(plan)
            node["attrs"] = {**node.get("attrs", {}), **added}
        _patterns(result["nodes"], plan)
        return result
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise GraphError(f"expected the JSON of a symbol, got {type(error).__name__}: {error}") from error


def _attributes(op: str, decisions: list[Decision]) -> dict[str, str]:
    if not decisions:
        return {}
    fused = [decision.op for decision in decisions if decision.op != op]
    attributes = {
        DECISION: ", ".join(dict.fromkeys(decision.action for decision in decisions)),
        BYTES: str(sum(decision.bytes for decision in decisions)),
        REASON: "; ".join(dict.fromkeys(decision.reason for decision in decisions)),
    }
    return {**attributes, **({FUSED: ", ".join(dict.fromkeys(fused))} if fused else {})}


def _nothing(plan: Plan) -> dict[str, str]:
    """The attributes of an operator on which nothing is decided."""
    inside = ", or it is part of what a fused operator takes the place of" if plan.fused else ""
    return {DECISION: NOTHING, REASON: f"no gradient reads its output{inside}"}


def _patterns(nodes: list[dict[str, Any]], plan: Plan) -> None:
    for pattern, number in plan.fused:
        if ":" not in pattern:  # otherwise a layout of products, whose node is one of another graph
            nodes[number]["attrs"] = {**nodes[number].get("attrs", {}), FUSED: pattern}
    for missed in plan.missed:
        node = nodes[missed.node]
        node["attrs"] = {**node.get("attrs", {}), MISSED: f"{missed.pattern}: {missed.reason}"}
