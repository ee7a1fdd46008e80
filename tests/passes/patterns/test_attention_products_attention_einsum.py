"""Which einsums are the products of attention, and what their letters mean."""

from __future__ import annotations

import pytest

from echo.ir.graph import Node
from echo.passes.patterns.attention_products import Scoring, Weighing, scoring, weighings


def einsum(subscripts: str, op: str = "_npi_einsum") -> Node:
    return Node(op, "product", attrs={"subscripts": subscripts})


@pytest.mark.parametrize(
    ("subscripts", "expected"),
    [("nqd,nkd->nqk", Scoring(0, 1, "NTD", "NSD")), ("bqhd, bkhd -> bhqk", Scoring(0, 1, "bThD", "bShD")),
     ("bhdk,bhqd->bhqk", Scoring(1, 0, "bhTD", "bhDS")), ("qnd,dkn->nqk", Scoring(0, 1, "TND", "DSN"))],
)  # fmt: skip
def test_products_of_queries_and_keys(subscripts: str, expected: Scoring) -> None:
    assert scoring(einsum(subscripts)) == expected


@pytest.mark.parametrize("subscripts", [
    "", "nqd,nkd", "nqd->nqd", "nqd,nkd,n->nqk", "...qd,...kd->...qk", "nqd,kd->nqk", "qd,kd->qk", "nqd,nke->nqk",
    "nqde,nkde->nqk", "nqd,nkd->nqd", "nqq,nkq->nqk", "abcqd,abckd->abcqk", "nqd,nqd->nqk", "nqd,nkd->nk",
])  # fmt: skip
def test_einsum_of_another_form_is_no_scoring(subscripts: str) -> None:
    assert scoring(einsum(subscripts)) is None


@pytest.mark.parametrize(
    ("subscripts", "expected"),
    [("nqk,nkd->nqd", [Weighing(0, 1, "NSV", "NTV")]), ("bhqk,bkhd->bqhd", [Weighing(0, 1, "bShV", "bThV")]),
     ("bhjd,bhij->bhid", [Weighing(1, 0, "bhSV", "bhTV")]),
     ("ndk,nqk->nqd", [Weighing(1, 0, "NVS", "NTV")]), ("nqk,ndk->nqd", [Weighing(0, 1, "NVS", "NTV")])],
)  # fmt: skip
def test_products_of_weights_and_values(subscripts: str, expected: list[Weighing]) -> None:
    assert expected[0] in list(weighings(einsum(subscripts)))


def test_both_may_be_the_weights() -> None:
    """Only softmax in front of one of them tells."""
    found = list(weighings(einsum("nqk,ndk->nqd")))
    assert [(way.weights, way.result_axes) for way in found] == [(0, "NTV"), (1, "NVT")]


@pytest.mark.parametrize("subscripts", [
    "nqk,nkd->nkd", "nqk,kd->nqd", "qk,kd->qd", "nqk,nkde->nqde", "nqk,nkd->nq", "abcqk,abckd->abcqd", "nkq,nkd->nqd",
])  # fmt: skip
def test_einsum_of_another_form_is_no_weighing(subscripts: str) -> None:
    assert list(weighings(einsum(subscripts))) == []
    assert list(weighings(einsum("nqk,nkd->nqd", op="batch_dot"))) == []
