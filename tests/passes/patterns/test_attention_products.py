"""The operands of dot attention as kernels read them; `test_attention` has what is found."""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry
from echo.passes.patterns.attention_products import Built, is_weighing, product, result
from echo.passes.patterns.graph_view import View
from tests.attention_models import FORMS

Symbol = mx.sym.Symbol


def last(symbol: Symbol) -> tuple[View, int]:
    graph = graph_of(symbol)
    return View(graph), graph.heads[0].node


def of(op: Callable[..., Symbol], **more: object) -> tuple[View, int]:
    return last(op(mx.sym.var("one"), mx.sym.var("other"), **more))


def test_products_of_weights_and_values() -> None:
    assert is_weighing(*of(mx.sym.batch_dot))
    assert result(*of(mx.sym.batch_dot, transpose_b=True)).transposed
    assert is_weighing(*of(mx.sym.linalg.gemm2))
    assert not is_weighing(*of(mx.sym.batch_dot, transpose_a=True))
    assert not is_weighing(*of(mx.sym.linalg.gemm2, alpha=2.0))
    assert not is_weighing(*of(mx.sym.linalg.gemm2, axis=1))
    assert not is_weighing(*of(mx.sym.elemwise_add))


def test_products_of_queries_and_keys() -> None:
    view, number = of(mx.sym.linalg.gemm2, transpose_b=True, alpha=0.5)
    found = product(view, Entry(number))
    assert found is not None
    assert (found.scale, found.transposed, found.root) == (0.5, (False, False), False)
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
    assert any(is_weighing(View(graph), number) for number, node in enumerate(graph.nodes) if not node.is_variable)
