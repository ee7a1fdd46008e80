"""Fused operators stand only where MXNet infers the shapes and types of what they take the place of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

import mxnet as mx

from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.graph import Graph
from echo.ir.training_node import TensorType
from echo.passes.patterns.apply import find
from echo.passes.patterns.graph_view import Fusion
from echo.passes.patterns.legality import check_inferred_types

SHAPES = {f"{name}{step}": (4, 30, 1 if name == "w" else 16) for step in range(6) for name in "wv"}


def contexts() -> tuple[MxnetFramework, list[Fusion]]:
    """Six weighted sums of equal shapes."""
    sums = [
        mx.sym.sum(mx.sym.broadcast_mul(mx.sym.softmax(mx.sym.var(f"w{step}"), axis=1), mx.sym.var(f"v{step}")), axis=1)
        for step in range(6)
    ]
    symbol = mx.sym.Group(sums)
    graph = graph_of(symbol)
    fusions, _ = find(graph)
    assert {fusion.pattern for fusion in fusions} == {"weighted_sum"}
    session = MxnetFramework(graph, infer_binding(symbol, SHAPES), mx.cpu())
    assert session.why_no_fusion == ""  # which loads the operators
    return session, fusions


def with_out(fusion: Fusion, form: str) -> Fusion:
    return replace(fusion, nodes=tuple(node.with_attrs({"out": form}) for node in fusion.nodes))


class Asked:
    """The session's answers, with the graphs that it was asked about."""

    def __init__(self, session: MxnetFramework) -> None:
        self.session, self.graphs = session, list[Graph]()

    def __call__(self, graph: Graph, variables: Mapping[str, TensorType]) -> Any:
        self.graphs.append(graph)
        return self.session.inferred(graph, variables)


def test_equal_operators_are_asked_about_once() -> None:
    session, fusions = contexts()
    asked = Asked(session)
    assert check_inferred_types(fusions, session.types(), asked) == {}
    (graph,) = asked.graphs
    assert sum(not node.is_variable for node in graph.nodes) == 1


def test_another_shape_is_left_and_all_of_its_kind() -> None:
    session, fusions = contexts()
    wrong = [with_out(fusion, "B1H") if number in (1, 4) else fusion for number, fusion in enumerate(fusions)]
    reason = "expected float32[4,16], the fused operator gives float32[4,1,16]"
    found = check_inferred_types(wrong, session.types(), session.inferred)
    assert found == {fusions[1].anchor: reason, fusions[4].anchor: reason}


def test_another_type_is_left() -> None:
    session, fusions = contexts()
    types = {**session.types(), next(iter(fusions[2].outputs)): TensorType((4, 16), 2)}
    found = check_inferred_types(fusions, types, session.inferred)
    assert found == {fusions[2].anchor: "expected float16[4,16], the fused operator gives float32[4,16]"}


def test_fusion_that_mxnet_refuses_is_a_misfit() -> None:
    session, fusions = contexts()
    (node,) = fusions[3].nodes
    swapped = replace(fusions[3], nodes=(node._with(inputs=node.inputs[::-1]),))
    found = check_inferred_types([*fusions[:3], swapped], session.types(), session.inferred)
    assert found == {swapped.anchor: "MXNet finds no shapes for the fused operator"}


def test_no_fusions_ask_mxnet_nothing() -> None:
    session, _ = contexts()
    asked = Asked(session)
    assert check_inferred_types([], session.types(), asked) == {}
    assert not asked.graphs
