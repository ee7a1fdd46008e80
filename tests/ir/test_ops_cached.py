"""Every operator that echo recomputes gives the same bits when it runs twice in a CachedOp, too."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest
from mxnet import autograd

from echo import native
from echo.ir.ops import spec
from echo.runtime.cached_op import StockCachedOp
from tests.support.cases import recomputable_outputs
from tests.support.operator_builds import BUILDS, Build, node_under, symbol_with
from tests.support.training import assert_same, random_arrays, recomputing

DYNAMIC: dict[str, Any] = {"inline_limit": 0}
STATIC: dict[str, Any] = {"static_alloc": True, "static_shape": True}


def run(symbol: mx.sym.Symbol, flags: dict[str, Any], train_mode: bool = True) -> tuple[dict[str, Any], set[str]]:
    """Two steps of training; and the names of the nodes that compute the gradients."""
    inputs = {name: mx.nd.array(value, dtype=value.dtype) for name, value in arrays(symbol).items()}
    for array in inputs.values():
        array.attach_grad()
    _, _, aux_shapes = symbol.infer_shape(data=(8, 72))
    inputs.update({name: mx.nd.ones(shape) for name, shape in zip(symbol.list_auxiliary_states(), aux_shapes)})
    op = StockCachedOp(symbol, list(flags.items()))
    seen: dict[str, Any] = {}
    names: set[str] = set()
    for step in range(2):
        mx.random.seed(step)
        with autograd.record():
            outputs = op(*(inputs[name] for name in symbol.list_inputs()))
        with native.capture() as backward:
            autograd.backward(outputs, train_mode=train_mode)
        mx.nd.waitall()
        if backward.graph:
            names.update(node.name for node in native.captured_nodes(backward.graph))
        seen.update({f"{step} output {i}": output.asnumpy() for i, output in enumerate(outputs)})
        seen.update({f"{step} gradient {name}": a.grad.asnumpy() for name, a in inputs.items() if a.grad is not None})
        seen.update({f"{step} {name}": inputs[name].asnumpy() for name in symbol.list_auxiliary_states()})
    return seen, names


def arrays(symbol: mx.sym.Symbol) -> dict[str, Any]:
    return random_arrays(symbol, {"data": (8, 72)})


@pytest.mark.every(11)
@pytest.mark.parametrize("flags", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_recomputed_in_a_cached_op(build: Build, flags: dict[str, Any]) -> None:
    symbol = symbol_with(build)
    node = node_under(symbol)
    if node.stateful and node.op != "Dropout":
        pytest.skip(f"{node.op} keeps state: it is never recomputed in a CachedOp")
    expected, names = run(symbol, flags)
    assert "under_echo" not in names
    marked = recomputing(symbol, {"under": list(recomputable_outputs(node, "cpu", hook=True))})
    found, names = run(marked, flags)
    assert "under_echo" in names
    assert_same(found, expected)
    if not spec(node.op).safety.train_mode_sensitive(node.attrs):
        assert_same(run(marked, flags, train_mode=False)[0], run(symbol, flags, train_mode=False)[0])


def test_batch_norm_depends_on_the_mode_of_the_backward_pass() -> None:
    symbol = symbol_with(BUILDS["BatchNorm"])
    marked = recomputing(symbol, {"under": [0]})
    with pytest.raises(AssertionError, match="arrays differ"):
        assert_same(run(marked, DYNAMIC, train_mode=False)[0], run(symbol, DYNAMIC, train_mode=False)[0])
