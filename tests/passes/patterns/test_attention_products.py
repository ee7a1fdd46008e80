"""The operands of dot attention as kernels read them; `test_attention` has what is found."""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry
from echo.passes.patterns.attention_products import BATCHED, SEVERAL, AttentionProduct, Built, Result, product, result
from echo.passes.patterns.graph_view import View
from tests.support.attention_models import FORMS

Symbol = mx.sym.Symbol


def last(symbol: Symbol) -> tuple[View, int]:
    graph = graph_of(symbol)
    return View(graph), graph.heads[0].node


def of(op: Callable[..., Symbol], **more: object) -> tuple[View, int]:
    return last(op(mx.sym.var("one"), mx.sym.var("other"), **more))


def summed(subscripts: str) -> tuple[View, int]:
    return last(mx.sym.np.einsum(subscripts, mx.sym.var("one").as_np_ndarray(), mx.sym.var("other").as_np_ndarray()))


def test_products_of_weights_and_values() -> None:
    assert result(*of(mx.sym.batch_dot)) == Result(BATCHED, Entry(0), Entry(1), ("NSV", "NTV"))
    assert result(*of(mx.sym.batch_dot, transpose_b=True)) == Result(BATCHED, Entry(0), Entry(1), ("NVS", "NTV"))
    assert result(*of(mx.sym.linalg.gemm2)) == Result(SEVERAL, Entry(0), Entry(1), ("bhSV", "bhTV"))
    assert result(*of(mx.sym.batch_dot, transpose_a=True)) is None
    assert result(*of(mx.sym.linalg.gemm2, alpha=2.0)) is None
    assert result(*of(mx.sym.linalg.gemm2, axis=1)) is None
    assert result(*of(mx.sym.elemwise_add)) is None
    assert result(*summed("nqk,nkd->nqd")) is None, "no weights"
    weights = mx.sym.softmax(mx.sym.var("scores")).as_np_ndarray()
    values = mx.sym.np.einsum("bkhd,bhqk->bqhd", mx.sym.var("v").as_np_ndarray(), weights)
    assert result(*last(values)) == Result(SEVERAL, Entry(2), Entry(0), ("bShV", "bThV"))


def test_products_of_queries_and_keys() -> None:
    view, number = of(mx.sym.linalg.gemm2, transpose_b=True, alpha=0.5)
    found = product(view, Entry(number))
    assert found is not None
    assert (found.scale, found.axes, found.root) == (0.5, ("bhTD", "bhSD"), False)
    view, number = of(mx.sym.batch_dot, transpose_a=True)
    assert product(view, Entry(number)) == AttentionProduct(BATCHED, (Entry(0), Entry(1)), ("NDT", "NDS"))
    view, number = summed("kbd,qbd->bqk")
    assert product(view, Entry(number)) == AttentionProduct(BATCHED, (Entry(1), Entry(0)), ("TND", "SND"))
    view, number = last(mx.sym.contrib.interleaved_matmul_selfatt_qk(mx.sym.var("qkv"), heads=3))
    found = product(view, Entry(number))
    assert found is not None
    assert (found.heads, found.root) == ("3", True)
    view, number = of(mx.sym.elemwise_add)
    assert product(view, Entry(number)) is None


def test_new_nodes_have_names_of_their_own() -> None:
    built = Built("it")
    for _ in range(3):
        built.add("ones_like", "ones", (Entry(0),))
    assert [node.name for node in built.nodes] == ["it_ones", "it_ones1", "it_ones2"]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_ends_in_such_a_product(name: str) -> None:
    graph = graph_of(FORMS[name]().symbol)
    assert any(result(View(graph), number) for number, node in enumerate(graph.nodes) if not node.is_variable)
