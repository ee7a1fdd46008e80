"""The sizes of blocks that MXNet's pools hand out; `tests/fake_gpu/test_memory.py` holds them against MXNet's own."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.ir.training_graph import MemoryPool, common_subexpressions
from tests.support.cases import case_of, model_case

MB = 1 << 20
SIZES = {  # of a request: the block in MXNet's naive pool, and in the one of powers of two
    0: (4096, 4096),
    100: (4096, 4096),
    5000: (8192, 8192),
    MB: (MB, MB),
    MB + 4: (MB + 4096, 2 * MB),
    2 * MB: (2 * MB, 2 * MB),
    3 * MB: (4 * MB, 4 * MB),
    9 * MB + 4: (10 * MB, 16 * MB),
    17 * MB: (18 * MB, 32 * MB),
    40 * MB: (40 * MB, 48 * MB),
}


def test_a_size_is_rounded_to_a_page_and_then_once_more() -> None:
    """As MXNet does; so a larger request never gets a smaller block."""
    for page, coarse in [(1000, 2 * MB), (3 * 10**6, 2 * MB), (8 * MB, 2 * MB), (4096, 3 * 10**6), (4096, 1)]:
        pool = MemoryPool(page, coarse, powers=False)
        blocks = [pool.handed_out(size) for size in range(0, 20 * MB, 99_991)]
        assert blocks == sorted(blocks)
    assert MemoryPool(1000, 2 * MB, powers=False).handed_out(2 * MB) == 4 * MB
    assert MemoryPool(3 * 10**6, 2 * MB, powers=False).handed_out(1) == 4 * MB
    assert MemoryPool(8 * MB, 2 * MB, powers=False).handed_out(3 * 10**6) == 8 * MB
    assert MemoryPool(4096, 3 * 10**6, powers=False).handed_out(3 * 10**6) == 6 * 10**6
    assert MemoryPool(4096, 1, powers=False).handed_out(4) == 4096


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_blocks(size: int) -> None:
    naive, powers = MemoryPool(4096, 2 * MB, powers=False), MemoryPool(4096, 16 * MB, powers=True)
    assert (naive.handed_out(size), powers.handed_out(size)) == SIZES[size]


def test_equal_operators_stand_for_each_other() -> None:
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc")
    first, second = mx.sym.tanh(x, name="first"), mx.sym.tanh(x, name="second")
    left, right = mx.sym.exp(first, name="left"), mx.sym.exp(second, name="right")
    other = mx.sym.tanh(x * 2.0, name="other")
    symbol = mx.sym.MakeLoss(mx.sym.sum(left * right + other))
    case = case_of(symbol, {"data": (4, 5)}, grad_req="write")
    nodes = case.graph.nodes
    names = {
        nodes[duplicate].name: nodes[kept].name
        for duplicate, kept in common_subexpressions(case.graph, case.training).items()
    }
    assert names == {"second": "first", "right": "left"}


def test_equal_operators_with_differing_attributes_stay_apart() -> None:
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc")
    with mx.AttrScope(__role__="one"):
        first = mx.sym.tanh(x, name="first")
    with mx.AttrScope(__role__="two"):
        second = mx.sym.tanh(x, name="second")
    case = case_of(mx.sym.MakeLoss(mx.sym.sum(first * second)), {"data": (4, 5)}, grad_req="write")
    assert common_subexpressions(case.graph, case.training) == {}


def test_every_operator_of_a_model_is_there_or_merged() -> None:
    case = model_case("nmt")
    there = {node.original for node in case.training.nodes if node.original is not None}
    operators = {number for number, node in enumerate(case.graph.nodes) if not node.is_variable}
    assert operators <= there | set(common_subexpressions(case.graph, case.training))
