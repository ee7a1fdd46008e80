"""Which einsums are the products of attention, and what their letters mean."""

from __future__ import annotations

import pytest

from echo.ir.graph import Entry, Node
from echo.passes.patterns.attention_products import AttentionProduct, Result, scoring, weighings

FIRST, SECOND = Entry(0), Entry(1)


def einsum(subscripts: str, op: str = "_npi_einsum") -> Node:
    return Node(op, "product", (FIRST, SECOND), attrs={"subscripts": subscripts})


@pytest.mark.parametrize(
    ("subscripts", "form", "inputs", "axes"),
    [
        ("nqd,nkd->nqk", "batches", (FIRST, SECOND), ("NTD", "NSD")),
        ("bqhd, bkhd -> bhqk", "batches of several axes", (FIRST, SECOND), ("bThD", "bShD")),
        ("bhdk,bhqd->bhqk", "batches of several axes", (SECOND, FIRST), ("bhTD", "bhDS")),
        ("qnd,dkn->nqk", "batches", (FIRST, SECOND), ("TND", "DSN")),
    ],
)
def test_products_of_queries_and_keys(
    subscripts: str, form: str, inputs: tuple[Entry, Entry], axes: tuple[str, str]
) -> None:
    assert scoring(einsum(subscripts)) == AttentionProduct(form, inputs, axes)


@pytest.mark.parametrize("subscripts", [
    "", "nqd,nkd", "nqd->nqd", "nqd,nkd,n->nqk", "...qd,...kd->...qk", "nqd,kd->nqk", "qd,kd->qk", "nqd,nke->nqk",
    "nqde,nkde->nqk", "nqd,nkd->nqd", "nqq,nkq->nqk", "abcqd,abckd->abcqk", "nqd,nqd->nqk", "nqd,nkd->nk",
])  # fmt: skip
def test_einsum_of_another_form_is_no_scoring(subscripts: str) -> None:
    assert scoring(einsum(subscripts)) is None


@pytest.mark.parametrize(
    ("subscripts", "form", "inputs", "axes"),
    [
        ("nqk,nkd->nqd", "batches", (FIRST, SECOND), ("NSV", "NTV")),
        ("bhqk,bkhd->bqhd", "batches of several axes", (FIRST, SECOND), ("bShV", "bThV")),
        ("bhjd,bhij->bhid", "batches of several axes", (SECOND, FIRST), ("bhSV", "bhTV")),
        ("ndk,nqk->nqd", "batches", (SECOND, FIRST), ("NVS", "NTV")),
        ("nqk,ndk->nqd", "batches", (FIRST, SECOND), ("NVS", "NTV")),
    ],
)
def test_products_of_weights_and_values(
    subscripts: str, form: str, inputs: tuple[Entry, Entry], axes: tuple[str, str]
) -> None:
    assert Result(form, *inputs, axes) in list(weighings(einsum(subscripts)))


def test_both_may_be_the_weights() -> None:
    """Only softmax in front of one of them tells."""
    found = list(weighings(einsum("nqk,ndk->nqd")))
    assert [(way.weights, way.axes[1]) for way in found] == [(FIRST, "NTV"), (SECOND, "NVT")]


@pytest.mark.parametrize("subscripts", [
    "nqk,nkd->nkd", "nqk,kd->nqd", "qk,kd->qd", "nqk,nkde->nqde", "nqk,nkd->nq", "abcqk,abckd->abcqd", "nkq,nkd->nqd",
])  # fmt: skip
def test_einsum_of_another_form_is_no_weighing(subscripts: str) -> None:
    assert list(weighings(einsum(subscripts))) == []
    assert list(weighings(einsum("nqk,nkd->nqd", op="batch_dot"))) == []
